-- name: jobs_by_ids
SELECT {job} FROM packhorse_job WHERE id IN (SELECT value FROM json_each(?))

-- name: stored_among
SELECT id FROM packhorse_job WHERE id IN (SELECT value FROM json_each(?))

-- name: lock_jobs
-- A transaction that writes has locked the whole file already.
SELECT {job} FROM packhorse_job WHERE id IN (SELECT value FROM json_each(?))

-- name: unique_keys_of
SELECT unique_key FROM packhorse_job WHERE id IN (SELECT value FROM json_each(?)) AND unique_key IS NOT NULL

-- name: jobs_by_seqs
SELECT {job} FROM packhorse_job WHERE seq IN (SELECT value FROM json_each(?))

-- name: last_seq_and_move
-- Before jobs are inserted: the last number that was given, and the mark of a move, which closes the storage.
SELECT max(
    coalesce((SELECT max(seq) FROM packhorse_job), 0),
    coalesce((SELECT CAST(value AS INTEGER) FROM packhorse_meta WHERE key = 'last_seq'), 0)
), (SELECT value FROM packhorse_meta WHERE key = 'move')

-- name: remember_last_seq
-- Before the newest job is deleted: its number is never used again, or a list that is being paged would miss the next.
INSERT INTO packhorse_meta (key, value)
SELECT 'last_seq', CAST(?1 AS TEXT) WHERE ?1 = (SELECT max(seq) FROM packhorse_job)
ON CONFLICT (key) DO UPDATE SET value = excluded.value WHERE CAST(excluded.value AS INTEGER) > CAST(value AS INTEGER)

-- name: put_large_args
INSERT INTO packhorse_large_args (job, args) VALUES (?, ?)
ON CONFLICT (job) DO UPDATE SET args = excluded.args

-- name: get_locks
SELECT key, job_id, period, until, taken_at FROM packhorse_unique_lock
WHERE key IN (SELECT value FROM json_each(?))

-- name: replaced_by
-- The jobs whose calls these have replaced already: their answers were lost.
SELECT twin, job_id FROM packhorse_replaced WHERE twin IN (SELECT value FROM json_each(?))

-- name: put_replaced
INSERT INTO packhorse_replaced (twin, job_id, at) VALUES (?, ?, ?)

-- name: put_lock
INSERT INTO packhorse_unique_lock (key, job_id, period, until, taken_at) VALUES (?, ?, ?, ?, ?)
ON CONFLICT (key) DO UPDATE
SET job_id = excluded.job_id, period = excluded.period, until = excluded.until, taken_at = excluded.taken_at

-- name: retake_lock
-- A retried job holds its key again. A lock that it has already stays as it is.
INSERT INTO packhorse_unique_lock (key, job_id, until, taken_at) VALUES (?, ?, 'finish', ?)
ON CONFLICT (key) DO UPDATE
SET job_id = excluded.job_id, period = NULL, taken_at = excluded.taken_at WHERE job_id <> excluded.job_id

-- name: count_failure
-- A failure of another version of the code ends the silence.
INSERT INTO packhorse_failure (
    cause, task, pattern, place, number, first_at, last_at, last_job_id, first_version, last_version
)
VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9, ?9)
ON CONFLICT (cause) DO UPDATE
SET number = number + 1, place = excluded.place, last_at = excluded.last_at,
    last_job_id = excluded.last_job_id, last_version = coalesce(excluded.last_version, last_version),
    silenced_until = CASE WHEN excluded.last_version <> silenced_version THEN NULL ELSE silenced_until END,
    silenced_by = CASE WHEN excluded.last_version <> silenced_version THEN NULL ELSE silenced_by END,
    silenced_version = CASE WHEN excluded.last_version <> silenced_version THEN NULL ELSE silenced_version END

-- name: keep_packs_of_gone
INSERT INTO packhorse_old_packs (job_id, packs, at)
SELECT id, packs, ? FROM packhorse_job WHERE seq IN (SELECT value FROM json_each(?)) AND packs <> ''

-- name: delete_jobs
DELETE FROM packhorse_job WHERE seq IN (SELECT value FROM json_each(?))

-- name: delete_large_args
DELETE FROM packhorse_large_args WHERE job IN (SELECT value FROM json_each(?))

-- name: delete_log
DELETE FROM packhorse_log_line WHERE job_id IN (SELECT value FROM json_each(?))

-- name: delete_subscribers
DELETE FROM packhorse_subscriber WHERE job_id IN (SELECT value FROM json_each(?))

-- name: delete_locks
DELETE FROM packhorse_unique_lock
WHERE key IN (SELECT value FROM json_each(?)) AND job_id IN (SELECT value FROM json_each(?))

-- name: know_task
INSERT INTO packhorse_task (name, queue) VALUES (?, ?) ON CONFLICT (name) DO NOTHING

-- name: know_queue
INSERT INTO packhorse_queue (name) VALUES (?) ON CONFLICT (name) DO NOTHING

-- name: announce_task
INSERT INTO packhorse_task (name, queue, options, announced_at) VALUES (?, ?, ?, ?)
ON CONFLICT (name) DO UPDATE
SET queue = excluded.queue, options = excluded.options, announced_at = excluded.announced_at

-- name: all_tasks
SELECT name, queue, options, announced_at FROM packhorse_task ORDER BY name

-- name: all_queues
SELECT name, paused_at, paused_by, paused_why, CASE WHEN timed_at = paused_at THEN paused_until END
FROM packhorse_queue ORDER BY name

-- name: all_tallies
SELECT queue, task, state, number FROM packhorse_tally WHERE number > 0 ORDER BY queue, task, state

-- name: put_order
INSERT INTO packhorse_meta (key, value) VALUES ('order', ?)
ON CONFLICT (key) DO UPDATE SET value = excluded.value
