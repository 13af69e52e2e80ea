-- name: put_worker
INSERT INTO {schema}.packhorse_worker (
    id, subject, foreman, host, pid, queues, concurrency, info, report, joined_at, beat_at
) VALUES ($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11)
ON DUPLICATE KEY UPDATE
    subject = VALUES(subject), foreman = VALUES(foreman), host = VALUES(host), pid = VALUES(pid),
    queues = VALUES(queues), concurrency = VALUES(concurrency), info = VALUES(info), report = VALUES(report),
    joined_at = VALUES(joined_at), beat_at = VALUES(beat_at)

-- name: add_worker
INSERT IGNORE INTO {schema}.packhorse_worker (
    id, subject, foreman, host, pid, queues, concurrency, info, report, joined_at, beat_at
) VALUES ($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11)

-- name: lock_workers
SELECT id, subject, foreman, host, pid, queues, concurrency, info, report, joined_at, beat_at
FROM {schema}.packhorse_worker WHERE id IN ($1*) ORDER BY id FOR UPDATE

-- name: worker
SELECT id, subject, foreman, host, pid, queues, concurrency, info, report, joined_at, beat_at
FROM {schema}.packhorse_worker WHERE id = $1

-- name: all_workers
SELECT id, subject, foreman, host, pid, queues, concurrency, info, report, joined_at, beat_at
FROM {schema}.packhorse_worker ORDER BY joined_at, id

-- name: beat
-- $2 says what each of these owners reports. The row count includes rows that do not change: our sessions ask for that.
UPDATE {schema}.packhorse_worker SET beat_at = $1, report = $2 WHERE id IN ($3*)

-- name: beaten
-- The time, and the jobs of these owners that should stop.
SELECT $1, job.id, job.owner, job.fence, job.abort_reason
FROM (SELECT 1) AS once
LEFT JOIN {schema}.packhorse_job AS job FORCE INDEX (packhorse_job_held)
    ON job.owner IN ($2*) AND job.abort_at IS NOT NULL
ORDER BY job.seq

-- name: known_among
SELECT id FROM {schema}.packhorse_worker WHERE id IN ($1*)

-- name: jobs_to_stop
SELECT id, owner, fence, abort_reason FROM {schema}.packhorse_job FORCE INDEX (packhorse_job_held)
WHERE owner IN ($1*) AND abort_at IS NOT NULL
ORDER BY seq

-- name: lock_clients
SELECT id, name, info, joined_at, beat_at FROM {schema}.packhorse_client WHERE id IN ($1*) ORDER BY id FOR UPDATE

-- name: client_exists
-- The client stays until the end of this transaction.
SELECT 1 FROM {schema}.packhorse_client WHERE id = $1 LOCK IN SHARE MODE

-- name: client_exists_unlocked
-- For a caller's transaction: it may last, and the client's signs of life would wait for it.
SELECT 1 FROM {schema}.packhorse_client WHERE id = $1

-- name: put_client
INSERT INTO {schema}.packhorse_client (id, name, info, joined_at, beat_at) VALUES ($1, $2, $3, $4, $5)
ON DUPLICATE KEY UPDATE
    name = VALUES(name), info = VALUES(info), joined_at = VALUES(joined_at), beat_at = VALUES(beat_at)

-- name: all_clients
SELECT id, name, info, joined_at, beat_at,
       (SELECT count(*) FROM {schema}.packhorse_subscriber FORCE INDEX (packhorse_subscriber_client) WHERE client_id = packhorse_client.id)
FROM {schema}.packhorse_client ORDER BY joined_at, id

-- name: silent_clients
SELECT id FROM {schema}.packhorse_client WHERE beat_at <= $1 ORDER BY beat_at, id LIMIT $2 FOR UPDATE SKIP LOCKED

-- name: delete_client
DELETE FROM {schema}.packhorse_client WHERE id = $1

-- name: delete_subscriptions
DELETE gone FROM {schema}.packhorse_subscriber AS gone FORCE INDEX (packhorse_subscriber_client) WHERE client_id = $1

-- name: wanted_by
SELECT job_id FROM {schema}.packhorse_subscriber FORCE INDEX (packhorse_subscriber_client) WHERE client_id = $1 ORDER BY job_id LIMIT $2

-- name: add_subscriber
INSERT INTO {schema}.packhorse_subscriber (job_id, client_id) VALUES ($1, $2)
ON DUPLICATE KEY UPDATE client_id = VALUES(client_id)

-- name: delete_subscriber
DELETE FROM {schema}.packhorse_subscriber WHERE job_id = $1 AND client_id = $2

-- name: subscribers_of
SELECT job_id, client_id FROM {schema}.packhorse_subscriber WHERE job_id IN ($1*)
ORDER BY job_id, client_id

-- name: outcomes_for
SELECT {job_columns}
FROM {schema}.packhorse_subscriber AS wanted FORCE INDEX (packhorse_subscriber_client)
STRAIGHT_JOIN {schema}.packhorse_job AS job FORCE INDEX (packhorse_job_id) ON job.id = wanted.job_id
WHERE wanted.client_id = $1 AND job.finished_at IS NOT NULL
ORDER BY job.finished_at, job.seq LIMIT $2

-- name: subscribed_among
SELECT DISTINCT job_id FROM {schema}.packhorse_subscriber FORCE INDEX (PRIMARY) WHERE job_id IN ($1*)
