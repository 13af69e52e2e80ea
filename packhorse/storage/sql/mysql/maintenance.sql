-- name: due_jobs
SELECT {job} FROM {schema}.packhorse_job FORCE INDEX (packhorse_job_due)
WHERE due_at <= $1 ORDER BY due_at, seq LIMIT $2 FOR UPDATE SKIP LOCKED

-- name: next_due
-- How long it is until then.
SELECT {due_in_at_1}

-- name: outlook
-- The time, then whether a job of these owners should stop, one is in line, there are orders, and anybody holds a job; the mark of
-- a move; and when the next job is due, the next expires, the next slot comes and the next pause ends. Last the order
-- of queues.
SELECT $1,
       (SELECT count(*) FROM (
           SELECT 1 FROM {schema}.packhorse_job FORCE INDEX (packhorse_job_held)
           WHERE owner IN ($2*) AND abort_at IS NOT NULL LIMIT 1
       ) AS stops),
       (SELECT count(*) FROM (
           SELECT 1 FROM {schema}.packhorse_job FORCE INDEX (packhorse_job_line) WHERE line IS NOT NULL LIMIT 1
       ) AS waiting),
       (SELECT count(*) FROM (
           SELECT 1 FROM {schema}.packhorse_event FORCE INDEX (packhorse_event_job)
           WHERE job_id IS NULL AND subject = 'foreman' AND id > $4 AND kind = 'ordered' AND owner = $3 LIMIT 1
       ) AS orders),
       (SELECT count(*) FROM (
           SELECT 1 FROM {schema}.packhorse_job FORCE INDEX (packhorse_job_held) WHERE owner IS NOT NULL LIMIT 1
       ) AS held),
       (SELECT value FROM {schema}.packhorse_meta WHERE `key` = 'move'),
       (
           SELECT due_at FROM {schema}.packhorse_job FORCE INDEX (packhorse_job_due)
           WHERE due_at IS NOT NULL ORDER BY due_at LIMIT 1
       ),
       (
           SELECT expire_at FROM {schema}.packhorse_job FORCE INDEX (packhorse_job_expiring)
           WHERE expire_at IS NOT NULL ORDER BY expire_at LIMIT 1
       ),
       (SELECT next_at FROM {schema}.packhorse_schedule WHERE paused_at IS NULL ORDER BY next_at LIMIT 1),
       (SELECT min(paused_until) FROM {schema}.packhorse_queue WHERE paused_until IS NOT NULL AND timed_at = paused_at),
       (SELECT value FROM {schema}.packhorse_meta WHERE `key` = 'order')

-- name: expired_jobs
SELECT {job} FROM {schema}.packhorse_job FORCE INDEX (packhorse_job_expiring)
WHERE expire_at <= $1 ORDER BY expire_at, seq LIMIT $2 FOR UPDATE SKIP LOCKED

-- name: held_jobs
SELECT {job} FROM {schema}.packhorse_job FORCE INDEX (packhorse_job_held)
WHERE owner IN ($1*) ORDER BY seq LIMIT $2 FOR UPDATE

-- name: lost_jobs
-- Held by these silent owners, or by an owner who is no worker.
SELECT {job} FROM {schema}.packhorse_job FORCE INDEX (packhorse_job_held)
WHERE owner IS NOT NULL AND (
    owner IN ($1*) OR owner NOT IN (SELECT id FROM {schema}.packhorse_worker)
)
ORDER BY seq LIMIT $2 FOR UPDATE SKIP LOCKED

-- name: has_lost
-- Whether anybody is silent or beats in the future, or holds jobs and is unknown.
SELECT EXISTS (SELECT 1 FROM {schema}.packhorse_worker WHERE NOT ({alive})) OR EXISTS (
    SELECT 1 FROM {schema}.packhorse_job FORCE INDEX (packhorse_job_held)
    WHERE owner IS NOT NULL AND owner NOT IN (SELECT id FROM {schema}.packhorse_worker)
)

-- name: unowned_queues
-- Queues with more held jobs in the tallies than jobs with an owner.
SELECT tally.queue FROM (
    SELECT queue, sum(amount) AS number FROM (
        SELECT queue, counted, amount FROM {schema}.packhorse_measure WHERE level = 'tally' AND at = 0
        UNION ALL
        SELECT queue, counted, amount FROM {schema}.packhorse_delta WHERE level = 'tally'
    ) AS counts WHERE counted IN ('reserved', 'running') GROUP BY queue
) AS tally LEFT JOIN (
    SELECT queue, count(*) AS number FROM {schema}.packhorse_job FORCE INDEX (packhorse_job_held)
    WHERE owner IS NOT NULL GROUP BY queue
) AS held ON held.queue = tally.queue
WHERE tally.number > coalesce(held.number, 0)

-- name: unowned_jobs
SELECT {job} FROM {schema}.packhorse_job
WHERE queue = $1 AND state IN ('reserved', 'running') AND owner IS NULL ORDER BY seq LIMIT $2 FOR UPDATE SKIP LOCKED

-- name: silent_workers
-- Not beating for a lease, or beating in the future. One that beats just now is locked, and not silent.
SELECT id FROM {schema}.packhorse_worker WHERE NOT ({alive}) FOR UPDATE SKIP LOCKED

-- name: idle_worker
SELECT id, subject, foreman, host, pid, queues, concurrency, info, report, joined_at, beat_at
FROM {schema}.packhorse_worker AS worker
WHERE id = $1 AND NOT EXISTS (
    SELECT 1 FROM {schema}.packhorse_job AS job FORCE INDEX (packhorse_job_held) WHERE job.owner = worker.id
)
FOR UPDATE SKIP LOCKED

-- name: delete_worker
DELETE FROM {schema}.packhorse_worker WHERE id = $1

-- name: has_old
-- Whether anything is older than it is kept: $1 is for clients, $2 for completed, $3 for dead and $4 for aborted jobs, and
-- $5 for events.
SELECT EXISTS (SELECT 1 FROM {schema}.packhorse_client WHERE beat_at <= $1)
    OR EXISTS (
        SELECT 1 FROM {schema}.packhorse_job FORCE INDEX (packhorse_job_finished)
        WHERE ended = 'completed' AND finished_at <= $2 AND persistent = 0
    )
    OR EXISTS (
        SELECT 1 FROM {schema}.packhorse_job FORCE INDEX (packhorse_job_finished)
        WHERE ended = 'dead' AND finished_at <= $3 AND persistent = 0
    )
    OR EXISTS (
        SELECT 1 FROM {schema}.packhorse_job FORCE INDEX (packhorse_job_finished)
        WHERE ended = 'aborted' AND finished_at <= $4 AND persistent = 0
    )
    OR (SELECT at FROM {schema}.packhorse_event ORDER BY id LIMIT 1) <= $5
    OR (SELECT at FROM {schema}.packhorse_tick ORDER BY id LIMIT 1) <= $5
    OR (SELECT at FROM {schema}.packhorse_replaced ORDER BY id LIMIT 1) <= $5
    OR EXISTS (SELECT 1 FROM {schema}.packhorse_failure WHERE last_at <= $5)

-- name: prunable_jobs
SELECT {job_columns} FROM {schema}.packhorse_job AS job FORCE INDEX (packhorse_job_finished)
WHERE ended = $1 AND finished_at <= $2 AND persistent = 0
  AND NOT EXISTS (SELECT 1 FROM {schema}.packhorse_subscriber AS subscriber WHERE subscriber.job_id = job.id)
  AND NOT EXISTS (
      SELECT 1 FROM {schema}.packhorse_unique_lock AS held
      WHERE held.`key` = job.unique_key AND held.job_id = job.id AND held.taken_at + held.period > $3
  )
ORDER BY finished_at, seq LIMIT $4 FOR UPDATE SKIP LOCKED

-- name: oldest_event
SELECT at FROM {schema}.packhorse_event ORDER BY id LIMIT 1

-- name: old_events
-- Of the oldest only. The newest event always stays.
SELECT id FROM (SELECT id, at FROM {schema}.packhorse_event ORDER BY id LIMIT $1) AS oldest
WHERE at <= $2 AND id < (SELECT max(id) FROM {schema}.packhorse_event)

-- name: delete_events
DELETE gone FROM {schema}.packhorse_event AS gone FORCE INDEX (PRIMARY) WHERE id IN ($1*)

-- name: delete_ticks
DELETE FROM {schema}.packhorse_tick WHERE id IN (
    SELECT id FROM (
        SELECT id FROM (SELECT id, at FROM {schema}.packhorse_tick ORDER BY id LIMIT $1) AS oldest WHERE at <= $2
    ) AS past
)

-- name: delete_replaced
DELETE FROM {schema}.packhorse_replaced WHERE id IN (
    SELECT id FROM (
        SELECT id FROM (SELECT id, at FROM {schema}.packhorse_replaced ORDER BY id LIMIT $1) AS oldest WHERE at <= $2
    ) AS past
)

-- name: delete_failures
DELETE FROM {schema}.packhorse_failure WHERE last_at <= $1

-- name: lock_measures
-- One process at a time folds; the others need not wait for it.
SELECT 1 FROM {schema}.packhorse_meta WHERE `key` = 'fold' FOR UPDATE SKIP LOCKED

-- name: unfolded
-- Only what is committed. No other process deletes or changes these meanwhile.
SELECT id FROM {schema}.packhorse_delta ORDER BY id LIMIT $1

-- name: fold_deltas
INSERT INTO {schema}.packhorse_measure (level, at, queue, task, counted, amount)
SELECT * FROM (
    SELECT level AS its_level, at AS its_at, queue AS its_queue, task AS its_task, counted AS what, sum(amount) AS much
    FROM {schema}.packhorse_delta FORCE INDEX (PRIMARY) WHERE id IN ($1*) GROUP BY level, at, queue, task, counted
) AS folded
ON DUPLICATE KEY UPDATE amount = amount + VALUES(amount)

-- name: delete_deltas
DELETE gone FROM {schema}.packhorse_delta AS gone FORCE INDEX (PRIMARY) WHERE id IN ($1*)

-- name: has_to_fold
-- Whether anything is to be folded: what calls have added, or old measures of a level.
SELECT EXISTS (SELECT 1 FROM {schema}.packhorse_delta)
    OR EXISTS (SELECT 1 FROM {schema}.packhorse_measure WHERE level = 'minute' AND at <= $1 - $2)
    OR EXISTS (SELECT 1 FROM {schema}.packhorse_measure WHERE level = 'hour' AND at <= $1 - $3)
    OR EXISTS (SELECT 1 FROM {schema}.packhorse_measure WHERE level = 'day' AND at <= $1 - $4)

-- name: fold_measures
INSERT INTO {schema}.packhorse_measure (level, at, queue, task, counted, amount)
SELECT * FROM (
    SELECT $1 AS its_level, at - at % $2 AS its_at, queue AS its_queue, task AS its_task, counted AS what,
           sum(amount) AS much
    FROM {schema}.packhorse_measure WHERE level = $3 AND at <= $4
    GROUP BY at - at % $2, queue, task, counted
) AS folded
ON DUPLICATE KEY UPDATE amount = amount + VALUES(amount)

-- name: drop_folded_measures
DELETE FROM {schema}.packhorse_measure WHERE level = $1 AND at <= $2
