-- name: put_worker
INSERT OR REPLACE INTO packhorse_worker (
    id, subject, foreman, host, pid, queues, concurrency, info, report, joined_at, beat_at
) VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)

-- name: add_worker
INSERT OR IGNORE INTO packhorse_worker (
    id, subject, foreman, host, pid, queues, concurrency, info, report, joined_at, beat_at
) VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)

-- name: lock_workers
SELECT id, subject, foreman, host, pid, queues, concurrency, info, report, joined_at, beat_at
FROM packhorse_worker WHERE id IN (SELECT value FROM json_each(?))

-- name: worker
SELECT id, subject, foreman, host, pid, queues, concurrency, info, report, joined_at, beat_at
FROM packhorse_worker WHERE id = ?

-- name: all_workers
SELECT id, subject, foreman, host, pid, queues, concurrency, info, report, joined_at, beat_at
FROM packhorse_worker ORDER BY joined_at, id

-- name: beat
UPDATE packhorse_worker SET beat_at = ?, report = ? WHERE id = ?

-- name: jobs_to_stop
SELECT id, owner, fence, abort_reason FROM packhorse_job
WHERE owner IN (SELECT value FROM json_each(?)) AND abort_at IS NOT NULL
ORDER BY seq

-- name: lock_clients
SELECT id, name, info, joined_at, beat_at FROM packhorse_client WHERE id IN (SELECT value FROM json_each(?))

-- name: client_exists
SELECT 1 FROM packhorse_client WHERE id = ?

-- name: put_client
INSERT OR REPLACE INTO packhorse_client (id, name, info, joined_at, beat_at) VALUES (?, ?, ?, ?, ?)

-- name: all_clients
SELECT id, name, info, joined_at, beat_at,
       (SELECT count(*) FROM packhorse_subscriber WHERE client_id = packhorse_client.id)
FROM packhorse_client ORDER BY joined_at, id

-- name: silent_clients
SELECT id FROM packhorse_client WHERE beat_at <= ? ORDER BY beat_at, id LIMIT ?

-- name: delete_client
DELETE FROM packhorse_client WHERE id = ?

-- name: delete_subscriptions
DELETE FROM packhorse_subscriber WHERE client_id = ?

-- name: wanted_by
SELECT job_id FROM packhorse_subscriber WHERE client_id = ? ORDER BY job_id LIMIT ?

-- name: add_subscriber
INSERT OR IGNORE INTO packhorse_subscriber (job_id, client_id) VALUES (?, ?)

-- name: delete_subscriber
DELETE FROM packhorse_subscriber WHERE job_id = ? AND client_id = ?

-- name: subscribers_of
SELECT job_id, client_id FROM packhorse_subscriber WHERE job_id IN (SELECT value FROM json_each(?))
ORDER BY job_id, client_id

-- name: outcomes_for
SELECT {job} FROM packhorse_job
WHERE id IN (SELECT job_id FROM packhorse_subscriber WHERE client_id = ?) AND finished_at IS NOT NULL
ORDER BY finished_at, seq LIMIT ?
