-- name: due_jobs
SELECT {job} FROM {schema}.packhorse_job WHERE due_at <= $1 ORDER BY due_at, seq LIMIT $2 FOR UPDATE SKIP LOCKED

-- name: next_due
SELECT (SELECT due_at FROM {schema}.packhorse_job WHERE due_at IS NOT NULL ORDER BY due_at LIMIT 1)
       - coalesce($1::bigint, {schema}.packhorse_now())

-- name: outlook
-- The time, then whether a job of these owners should stop, one is in line, there are orders, and anybody holds a job; the mark of
-- a move; and when the next job is due, the next expires, the next slot comes and the next pause ends. Last the order
-- of queues.
SELECT coalesce($1::bigint, {schema}.packhorse_now()),
       EXISTS (
           SELECT 1 FROM {schema}.packhorse_job
           WHERE owner = ANY (ARRAY(SELECT json_array_elements_text($2::json))) AND abort_at IS NOT NULL
       ),
       EXISTS (SELECT 1 FROM {schema}.packhorse_job WHERE state = 'queued'),
       EXISTS (
           SELECT 1 FROM {schema}.packhorse_event
           WHERE job_id IS NULL AND subject = 'foreman' AND id > $4 AND kind = 'ordered' AND owner = $3
       ),
       (SELECT owner FROM {schema}.packhorse_job WHERE owner IS NOT NULL ORDER BY owner LIMIT 1) IS NOT NULL,
       (SELECT value FROM {schema}.packhorse_meta WHERE key = 'move'),
       (SELECT due_at FROM {schema}.packhorse_job WHERE due_at IS NOT NULL ORDER BY due_at LIMIT 1),
       (SELECT expire_at FROM {schema}.packhorse_job WHERE expire_at IS NOT NULL ORDER BY expire_at LIMIT 1),
       (SELECT next_at FROM {schema}.packhorse_schedule WHERE paused_at IS NULL ORDER BY next_at LIMIT 1),
       (SELECT min(paused_until) FROM {schema}.packhorse_queue WHERE paused_until IS NOT NULL AND timed_at = paused_at),
       (SELECT value FROM {schema}.packhorse_meta WHERE key = 'order')

-- name: has_expired
SELECT EXISTS (SELECT 1 FROM {schema}.packhorse_job WHERE expire_at <= coalesce($1::bigint, {schema}.packhorse_now()))

-- name: expired_jobs
SELECT {job} FROM {schema}.packhorse_job WHERE expire_at <= $1 ORDER BY expire_at, seq LIMIT $2 FOR UPDATE SKIP LOCKED

-- name: held_jobs
-- The sum keeps the server from reading all jobs in order.
SELECT {job} FROM {schema}.packhorse_job WHERE owner = ANY (ARRAY(SELECT json_array_elements_text($1::json))) ORDER BY seq + 0 LIMIT $2 FOR UPDATE

-- name: lost_jobs
-- Held by these silent owners, or by an owner who is no worker.
SELECT {job} FROM {schema}.packhorse_job
WHERE owner IS NOT NULL AND owner <> ALL (ARRAY(
    SELECT id FROM {schema}.packhorse_worker WHERE id <> ALL (ARRAY(SELECT json_array_elements_text($1::json)))
))
ORDER BY seq + 0 LIMIT $2 FOR UPDATE SKIP LOCKED -- the sum keeps the server from reading all jobs in order

-- name: has_lost
-- Whether anybody is silent or beats in the future, or holds jobs and is unknown.
SELECT EXISTS (SELECT 1 FROM {schema}.packhorse_worker WHERE NOT ({alive})) OR EXISTS (
    SELECT 1 FROM {schema}.packhorse_job
    WHERE owner IS NOT NULL AND owner <> ALL (ARRAY(SELECT id FROM {schema}.packhorse_worker))
)

-- name: unowned_queues
-- Queues with more held jobs in the tallies than jobs with an owner.
SELECT tally.queue FROM (
    SELECT queue, sum(amount) AS number FROM {schema}.packhorse_counted
    WHERE level = 'tally' AND counted || '' IN ('reserved', 'running') GROUP BY queue -- no part of the key it looks for
) AS tally LEFT JOIN (
    SELECT queue, count(*) AS number FROM {schema}.packhorse_job WHERE owner IS NOT NULL GROUP BY queue
) AS held ON held.queue = tally.queue
WHERE tally.number > coalesce(held.number, 0)

-- name: unowned_jobs
SELECT {job} FROM {schema}.packhorse_job
WHERE queue BETWEEN $1 AND $1 AND state IN ('reserved', 'running') AND owner IS NULL
ORDER BY queue, seq LIMIT $2 FOR UPDATE SKIP LOCKED

-- name: silent_workers
-- Not beating for a lease, or beating in the future. One that beats just now is locked, and not silent.
SELECT id FROM {schema}.packhorse_worker WHERE NOT ({alive}) FOR UPDATE SKIP LOCKED

-- name: idle_worker
SELECT id, subject, foreman, host, pid, queues, concurrency, info, report, joined_at, beat_at
FROM {schema}.packhorse_worker AS worker
WHERE id = $1 AND NOT EXISTS (
    SELECT 1 FROM {schema}.packhorse_job AS job WHERE job.owner = worker.id OFFSET 0
)
FOR UPDATE SKIP LOCKED

-- name: delete_worker
DELETE FROM {schema}.packhorse_worker WHERE id = $1

-- name: has_old
-- Whether anything is older than it is kept: $1 is for clients, $2 for completed, $3 for dead and $4 for aborted jobs, and
-- $5 for events.
SELECT EXISTS (SELECT 1 FROM {schema}.packhorse_client WHERE beat_at <= $1)
    OR EXISTS (SELECT 1 FROM {schema}.packhorse_job WHERE state = 'completed' AND finished_at <= $2 AND persistent = 0)
    OR EXISTS (SELECT 1 FROM {schema}.packhorse_job WHERE state = 'dead' AND finished_at <= $3 AND persistent = 0)
    OR EXISTS (SELECT 1 FROM {schema}.packhorse_job WHERE state = 'aborted' AND finished_at <= $4 AND persistent = 0)
    OR (SELECT at FROM {schema}.packhorse_event ORDER BY id LIMIT 1) <= $5
    OR (SELECT at FROM {schema}.packhorse_tick ORDER BY id LIMIT 1) <= $5
    OR (SELECT at FROM {schema}.packhorse_replaced ORDER BY id LIMIT 1) <= $5
    OR EXISTS (SELECT 1 FROM {schema}.packhorse_failure WHERE last_at <= $5)

-- name: prunable_jobs
SELECT {job} FROM {schema}.packhorse_job AS job
WHERE state = $1 AND finished_at <= $2 AND persistent = 0
  AND NOT EXISTS (SELECT 1 FROM {schema}.packhorse_subscriber AS subscriber WHERE subscriber.job_id = ANY (ARRAY[job.id]))
  AND NOT EXISTS (
      SELECT 1 FROM {schema}.packhorse_unique_lock AS lock
      WHERE lock.key = ANY (ARRAY[job.unique_key]) AND lock.job_id = job.id AND lock.taken_at + lock.period > $3
  )
ORDER BY finished_at, seq LIMIT $4 FOR UPDATE SKIP LOCKED

-- name: oldest_event
SELECT at FROM {schema}.packhorse_event ORDER BY id LIMIT 1

-- name: lock_old_events
-- One process at a time drops events, or two would trim the same batch; the next one sees what is left.
SELECT pg_advisory_xact_lock(hashtextextended('{schema} old events', 5040))

-- name: old_events
-- Of each of the oldest rows, how many of its events are old, and how many it has. The newest event always stays.
SELECT id, least(span + 1 - (id = newest)::integer, $1 - passed) AS number, span + 1
FROM (
    SELECT id, at, span, sum(span + 1) OVER (ORDER BY id) - span - 1 AS passed,
           (SELECT id FROM {schema}.packhorse_event ORDER BY id DESC LIMIT 1) AS newest
    FROM (SELECT id, at, span FROM {schema}.packhorse_event ORDER BY id LIMIT $1) AS rows
) AS oldest
WHERE at <= $2 AND passed < $1 AND (id < newest OR span > 0) ORDER BY id

-- name: delete_events
DELETE FROM {schema}.packhorse_event WHERE id = ANY (ARRAY(SELECT value::bigint FROM json_array_elements_text($1::json)))

-- name: trim_pack
-- Drop the oldest events of a batch.
UPDATE {schema}.packhorse_event
SET jobs = array_to_string((string_to_array(jobs, E'\n'))[$2::integer + 1:], E'\n'), span = span - $2 WHERE id = $1

-- name: delete_ticks
DELETE FROM {schema}.packhorse_tick WHERE ctid = ANY (ARRAY(
    SELECT ctid FROM (SELECT ctid, at FROM {schema}.packhorse_tick ORDER BY id LIMIT $1) AS oldest WHERE at <= $2
))

-- name: delete_replaced
DELETE FROM {schema}.packhorse_replaced WHERE id = ANY (ARRAY(
    SELECT id FROM (SELECT id, at FROM {schema}.packhorse_replaced ORDER BY id LIMIT $1) AS oldest WHERE at <= $2
))

-- name: delete_failures
DELETE FROM {schema}.packhorse_failure WHERE last_at <= $1

-- name: lock_measures
-- One process at a time folds; the others need not wait for it.
SELECT pg_try_advisory_xact_lock(hashtextextended('{schema} measures', 5040))

-- name: fold_deltas
WITH gone AS (
    DELETE FROM {schema}.packhorse_delta
    WHERE ctid = ANY (ARRAY(SELECT ctid FROM {schema}.packhorse_delta LIMIT $1))
    RETURNING level, at, queue, task, counted, amount
),
folded AS (
    INSERT INTO {schema}.packhorse_measure AS known (level, at, queue, task, counted, amount)
    SELECT level, at, queue, task, counted, sum(amount) FROM gone GROUP BY level, at, queue, task, counted
    ON CONFLICT (level, at, queue, task, counted) DO UPDATE SET amount = known.amount + excluded.amount
)
SELECT count(*) FROM gone

-- name: fold_measures
INSERT INTO {schema}.packhorse_measure AS known (level, at, queue, task, counted, amount)
SELECT $1, at - at % $2, queue, task, counted, sum(amount)
FROM {schema}.packhorse_measure WHERE level = $3 AND at <= $4
GROUP BY at - at % $2, queue, task, counted
ON CONFLICT (level, at, queue, task, counted) DO UPDATE SET amount = known.amount + excluded.amount

-- name: drop_folded_measures
DELETE FROM {schema}.packhorse_measure WHERE level = $1 AND at <= $2
