-- name: put_worker
INSERT INTO {schema}.packhorse_worker (
    id, subject, foreman, host, pid, queues, concurrency, info, report, joined_at, beat_at
) VALUES ($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11)
ON CONFLICT (id) DO UPDATE
SET subject = excluded.subject, foreman = excluded.foreman, host = excluded.host, pid = excluded.pid,
    queues = excluded.queues, concurrency = excluded.concurrency, info = excluded.info, report = excluded.report,
    joined_at = excluded.joined_at, beat_at = excluded.beat_at

-- name: add_worker
INSERT INTO {schema}.packhorse_worker (
    id, subject, foreman, host, pid, queues, concurrency, info, report, joined_at, beat_at
) VALUES ($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11)
ON CONFLICT (id) DO NOTHING

-- name: lock_workers
SELECT id, subject, foreman, host, pid, queues, concurrency, info, report, joined_at, beat_at
FROM {schema}.packhorse_worker WHERE id = ANY (ARRAY(SELECT json_array_elements_text($1::json))) ORDER BY id FOR UPDATE

-- name: worker
SELECT id, subject, foreman, host, pid, queues, concurrency, info, report, joined_at, beat_at
FROM {schema}.packhorse_worker WHERE id = $1

-- name: all_workers
SELECT id, subject, foreman, host, pid, queues, concurrency, info, report, joined_at, beat_at
FROM {schema}.packhorse_worker ORDER BY joined_at, id

-- name: beat
-- One heartbeat for many owners, from a JSON list. The second column is null for an owner that is unknown; the last ones
-- are a job of his that should stop.
WITH clock AS MATERIALIZED (SELECT coalesce($2::bigint, {schema}.packhorse_now()) AS now),
said AS MATERIALIZED (
    SELECT * FROM json_to_recordset($1::json) AS report (owner text, report text)
),
beaten AS (
    UPDATE {schema}.packhorse_worker AS worker SET beat_at = now, report = said.report
    FROM said, clock WHERE worker.id = said.owner RETURNING worker.id
)
SELECT said.owner, beaten.id, clock.now, job.id, job.fence, job.abort_reason
FROM clock, said
LEFT JOIN beaten ON beaten.id = said.owner
LEFT JOIN LATERAL (
    SELECT seq, id, fence, abort_reason FROM {schema}.packhorse_job
    WHERE owner = said.owner AND abort_at IS NOT NULL OFFSET 0 -- looked up for each, however few jobs there seem to be
) AS job ON true
ORDER BY job.seq

-- name: jobs_to_stop
SELECT id, owner, fence, abort_reason FROM {schema}.packhorse_job
WHERE owner = ANY (ARRAY(SELECT json_array_elements_text($1::json))) AND abort_at IS NOT NULL
ORDER BY seq + 0 -- the sum keeps the server from walking over all jobs in order

-- name: lock_clients
SELECT id, name, info, joined_at, beat_at FROM {schema}.packhorse_client WHERE id = ANY (ARRAY(SELECT json_array_elements_text($1::json))) ORDER BY id FOR NO KEY UPDATE

-- name: client_exists
-- The client stays until the end of this transaction; its signs of life do not wait.
SELECT 1 FROM {schema}.packhorse_client WHERE id = $1 FOR KEY SHARE

-- name: put_client
INSERT INTO {schema}.packhorse_client (id, name, info, joined_at, beat_at) VALUES ($1, $2, $3, $4, $5)
ON CONFLICT (id) DO UPDATE
SET name = excluded.name, info = excluded.info, joined_at = excluded.joined_at, beat_at = excluded.beat_at

-- name: all_clients
SELECT id, name, info, joined_at, beat_at,
       (SELECT count(*) FROM {schema}.packhorse_subscriber WHERE client_id = packhorse_client.id)
FROM {schema}.packhorse_client ORDER BY joined_at, id

-- name: silent_clients
SELECT id FROM {schema}.packhorse_client WHERE beat_at <= $1 ORDER BY beat_at, id LIMIT $2 FOR UPDATE SKIP LOCKED

-- name: delete_client
DELETE FROM {schema}.packhorse_client WHERE id = $1

-- name: delete_subscriptions
DELETE FROM {schema}.packhorse_subscriber WHERE client_id = $1

-- name: wanted_by
SELECT job_id FROM {schema}.packhorse_subscriber WHERE client_id = $1 ORDER BY job_id LIMIT $2

-- name: add_subscriber
INSERT INTO {schema}.packhorse_subscriber (job_id, client_id) VALUES ($1, $2) ON CONFLICT DO NOTHING

-- name: delete_subscriber
DELETE FROM {schema}.packhorse_subscriber WHERE (job_id, client_id) >= ($1, $2) AND (job_id, client_id) <= ($1, $2)

-- name: subscribers_of
SELECT job_id, client_id FROM {schema}.packhorse_subscriber WHERE job_id = ANY (ARRAY(SELECT json_array_elements_text($1::json)))
ORDER BY job_id, client_id

-- name: outcomes_for
SELECT {job} FROM {schema}.packhorse_job
WHERE id = ANY (ARRAY(SELECT job_id FROM {schema}.packhorse_subscriber WHERE client_id = $1))
  AND (finished_at IS NOT NULL) IS TRUE -- else the server might walk over all that have finished
ORDER BY finished_at, seq LIMIT $2

-- name: subscribed_among
SELECT DISTINCT job_id FROM {schema}.packhorse_subscriber WHERE job_id = ANY (ARRAY(SELECT json_array_elements_text($1::json)))
