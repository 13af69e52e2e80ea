-- name: due_jobs
SELECT {job} FROM packhorse_job WHERE due_at <= ? ORDER BY due_at, seq LIMIT ?

-- name: next_due
SELECT min(due_at) FROM packhorse_job WHERE due_at IS NOT NULL

-- name: outlook
-- The time, then whether a job of these owners should stop, one is in line (of any rank: said so that its index serves),
-- there are orders, and anybody holds a job. Then the mark of a move, and when the next job is due, the next expires, the next slot
-- comes and the next pause ends. Last the order
-- of queues.
SELECT ?1,
       EXISTS (SELECT 1 FROM packhorse_job WHERE owner IN (SELECT value FROM json_each(?2)) AND abort_at IS NOT NULL),
       EXISTS (SELECT 1 FROM packhorse_job WHERE state = 'queued' AND rank >= 0),
       EXISTS (
           SELECT 1 FROM packhorse_event
           WHERE job_id IS NULL AND subject = 'foreman' AND id > ?4 AND kind = 'ordered' AND owner = ?3
       ),
       EXISTS (SELECT 1 FROM packhorse_job WHERE owner IS NOT NULL),
       (SELECT value FROM packhorse_meta WHERE key = 'move'),
       (SELECT min(due_at) FROM packhorse_job WHERE due_at IS NOT NULL),
       (SELECT min(expire_at) FROM packhorse_job WHERE expire_at IS NOT NULL),
       (SELECT min(next_at) FROM packhorse_schedule WHERE paused_at IS NULL),
       (SELECT min(paused_until) FROM packhorse_queue WHERE paused_until IS NOT NULL AND timed_at = paused_at),
       (SELECT value FROM packhorse_meta WHERE key = 'order')

-- name: expired_jobs
SELECT {job} FROM packhorse_job WHERE expire_at <= ? ORDER BY expire_at, seq LIMIT ?

-- name: held_jobs
-- The plus keeps SQLite from reading all jobs in order.
SELECT {job} FROM packhorse_job WHERE owner IN (SELECT value FROM json_each(?)) ORDER BY +seq LIMIT ?

-- name: lost_jobs
-- Held by these silent owners, or by an owner who is no worker.
SELECT {job} FROM packhorse_job
WHERE owner IS NOT NULL AND owner NOT IN (
    SELECT id FROM packhorse_worker WHERE id NOT IN (SELECT value FROM json_each(?))
)
ORDER BY +seq LIMIT ? -- the plus keeps SQLite from reading all jobs in order

-- name: unowned_queues
-- Queues with more held jobs in the tallies than jobs with an owner. The pluses keep SQLite to the few that are held.
SELECT tally.queue FROM (
    SELECT queue, sum(number) AS number FROM packhorse_tally WHERE state IN ('reserved', 'running') GROUP BY queue
) AS tally LEFT JOIN (
    SELECT queue, count(*) AS number FROM packhorse_job WHERE owner IS NOT NULL GROUP BY +queue
) AS held ON held.queue = tally.queue
WHERE tally.number > coalesce(held.number, 0)

-- name: unowned_jobs
SELECT {job} FROM packhorse_job
WHERE queue = ?1 AND state IN ('reserved', 'running') AND owner IS NULL ORDER BY seq LIMIT ?2

-- name: silent_workers
-- Not beating for a lease, or beating in the future.
SELECT id FROM packhorse_worker WHERE NOT ({alive})

-- name: idle_worker
SELECT id, subject, foreman, host, pid, queues, concurrency, info, report, joined_at, beat_at
FROM packhorse_worker WHERE id = ? AND id NOT IN (SELECT owner FROM packhorse_job WHERE owner IS NOT NULL)

-- name: delete_worker
DELETE FROM packhorse_worker WHERE id = ?

-- name: prunable_jobs
SELECT {job} FROM packhorse_job
WHERE state = ? AND finished_at <= ? AND persistent = 0
  AND id NOT IN (SELECT job_id FROM packhorse_subscriber)
  AND NOT EXISTS (
      SELECT 1 FROM packhorse_unique_lock AS lock
      WHERE lock.key = packhorse_job.unique_key AND lock.job_id = packhorse_job.id AND lock.taken_at + lock.period > ?
  )
ORDER BY finished_at, seq LIMIT ?

-- name: newest_event
-- It always stays, so that ids never start again.
SELECT max(id) FROM packhorse_event

-- name: oldest_events
SELECT id, at, span FROM packhorse_event ORDER BY id LIMIT ?

-- name: event_row
SELECT {event} FROM packhorse_event WHERE id = ?

-- name: delete_event
DELETE FROM packhorse_event WHERE id = ?

-- name: delete_old_packs
DELETE FROM packhorse_old_packs
WHERE id IN (SELECT id FROM (SELECT id, at FROM packhorse_old_packs ORDER BY id LIMIT ?) WHERE at <= ?)

-- name: delete_ticks
DELETE FROM packhorse_tick
WHERE id IN (SELECT id FROM (SELECT id, at FROM packhorse_tick ORDER BY id LIMIT ?) WHERE at <= ?)

-- name: delete_replaced
DELETE FROM packhorse_replaced
WHERE rowid IN (SELECT id FROM (SELECT rowid AS id, at FROM packhorse_replaced ORDER BY rowid LIMIT ?) WHERE at <= ?)

-- name: delete_failures
DELETE FROM packhorse_failure WHERE last_at <= ?

-- name: fold_measures
INSERT INTO packhorse_measure (level, at, queue, task, counted, amount)
SELECT ?1, at - at % ?2, queue, task, counted, sum(amount)
FROM packhorse_measure WHERE level = ?3 AND at <= ?4
GROUP BY at - at % ?2, queue, task, counted
ON CONFLICT (level, at, queue, task, counted) DO UPDATE SET amount = amount + excluded.amount

-- name: drop_folded_measures
DELETE FROM packhorse_measure WHERE level = ? AND at <= ?
