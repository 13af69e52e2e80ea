-- name: jobs_by_ids
SELECT {job} FROM {schema}.packhorse_job FORCE INDEX (packhorse_job_id) WHERE id IN ($1*)

-- name: stored_among
-- Without a lock: in a caller's transaction a lock on what is not there would shut out all that come after it.
SELECT id FROM {schema}.packhorse_job FORCE INDEX (packhorse_job_id) WHERE id IN ($1*)

-- name: lock_jobs
SELECT {job} FROM {schema}.packhorse_job FORCE INDEX (packhorse_job_id) WHERE id IN ($1*) ORDER BY id FOR UPDATE

-- name: unique_keys_of
SELECT unique_key FROM {schema}.packhorse_job FORCE INDEX (packhorse_job_id)
WHERE id IN ($1*) AND unique_key IS NOT NULL

-- name: insert_jobs
INSERT INTO {schema}.packhorse_job (
    id, task, queue, args, state, priority, `rank`, created_at, updated_at, due_at, queued_at, first_queued_at,
    max_attempts, max_halts, timeout, idle_timeout, expires, total_timeout, expire_at, unique_key, persistent,
    created_by, schedule, backoff, meta
) VALUES $1()

-- name: set_now
-- The time of a call, so that no trip is needed to read it. It is null while the storage is moved, so that writes fail.
SET @packhorse_now = IF(
    (SELECT value FROM {schema}.packhorse_meta WHERE `key` = 'move' LOCK IN SHARE MODE) = '', $1, NULL
)

-- name: insert_plain_jobs
-- Jobs that are queued immediately and have no options.
INSERT INTO {schema}.packhorse_job (
    id, task, queue, args, state, priority, `rank`, created_at, updated_at, queued_at, first_queued_at,
    max_attempts, max_halts
) VALUES $1()

-- name: lock_keys
-- The first transaction creates the rows, and the others wait for them.
INSERT INTO {schema}.packhorse_unique_lock (`key`) VALUES $1() ON DUPLICATE KEY UPDATE taken_at = taken_at

-- name: get_locks
SELECT `key`, job_id, period, until, taken_at FROM {schema}.packhorse_unique_lock FORCE INDEX (PRIMARY)
WHERE `key` IN ($1*) AND job_id <> '' ORDER BY `key` FOR UPDATE

-- name: replaced_by
-- The jobs whose calls these have replaced already: their answers were lost.
SELECT twin, job_id FROM {schema}.packhorse_replaced WHERE twin IN ($1*)

-- name: put_replaced
INSERT INTO {schema}.packhorse_replaced (twin, job_id, at) VALUES ($1, $2, $3)
ON DUPLICATE KEY UPDATE twin = VALUES(twin)

-- name: put_locks
INSERT INTO {schema}.packhorse_unique_lock (`key`, job_id, period, until, taken_at) VALUES $1()
ON DUPLICATE KEY UPDATE
    job_id = VALUES(job_id), period = VALUES(period), until = VALUES(until), taken_at = VALUES(taken_at)

-- name: retake_lock
-- A retried job holds its key again. A lock that it has already stays as it is. The order matters: each of
-- these sees what those before it have written.
INSERT INTO {schema}.packhorse_unique_lock (`key`, job_id, taken_at) VALUES ($1, $2, $3)
ON DUPLICATE KEY UPDATE
    period = IF(job_id = VALUES(job_id), period, NULL),
    taken_at = IF(job_id = VALUES(job_id), taken_at, VALUES(taken_at)),
    job_id = VALUES(job_id)

-- name: count_failure
-- A failure of another version of the code ends the silence. Each of these sees what those before
-- it have written.
INSERT INTO {schema}.packhorse_failure
    (cause, task, pattern, place, number, first_at, last_at, last_job_id, first_version, last_version)
VALUES ($1, $2, $3, $4, $5, $6, $7, $8, $9, $9)
ON DUPLICATE KEY UPDATE
    number = number + 1, place = VALUES(place), last_at = VALUES(last_at), last_job_id = VALUES(last_job_id),
    last_version = coalesce(VALUES(last_version), last_version),
    silenced_until = IF(VALUES(last_version) <> silenced_version, NULL, silenced_until),
    silenced_by = IF(VALUES(last_version) <> silenced_version, NULL, silenced_by),
    silenced_version = IF(VALUES(last_version) <> silenced_version, NULL, silenced_version)

-- name: delete_jobs
DELETE gone FROM {schema}.packhorse_job AS gone FORCE INDEX (PRIMARY) WHERE seq IN ($1*)

-- name: delete_log
DELETE gone FROM {schema}.packhorse_log_line AS gone FORCE INDEX (packhorse_log_line_job) WHERE job_id IN ($1*)

-- name: delete_subscribers
DELETE gone FROM {schema}.packhorse_subscriber AS gone FORCE INDEX (PRIMARY) WHERE job_id IN ($1*)

-- name: delete_locks
DELETE gone FROM {schema}.packhorse_unique_lock AS gone FORCE INDEX (PRIMARY)
WHERE `key` IN ($1*) AND job_id IN ($2*)

-- name: known_tasks
SELECT name FROM {schema}.packhorse_task WHERE name IN ($1*)

-- name: known_queues
SELECT name FROM {schema}.packhorse_queue WHERE name IN ($1*)

-- name: know_task
INSERT INTO {schema}.packhorse_task (name, queue, options) VALUES ($1, $2, '{}') ON DUPLICATE KEY UPDATE name = VALUES(name)

-- name: know_queue
INSERT INTO {schema}.packhorse_queue (name) VALUES ($1) ON DUPLICATE KEY UPDATE name = VALUES(name)

-- name: announce_task
INSERT INTO {schema}.packhorse_task (name, queue, options, announced_at) VALUES ($1, $2, $3, $4)
ON DUPLICATE KEY UPDATE queue = VALUES(queue), options = VALUES(options), announced_at = VALUES(announced_at)

-- name: all_tasks
SELECT name, queue, options, announced_at FROM {schema}.packhorse_task ORDER BY name

-- name: all_queues
-- The queues, and how many jobs each has in each state.
SELECT name, '', paused_at, paused_by, paused_why, CASE WHEN timed_at = paused_at THEN paused_until END
FROM {schema}.packhorse_queue
UNION ALL
SELECT queue, counted, CAST(sum(amount) AS signed) AS number, NULL, NULL, NULL FROM (
    SELECT queue, counted, amount FROM {schema}.packhorse_measure WHERE level = 'tally' AND at = 0
    UNION ALL
    SELECT queue, counted, amount FROM {schema}.packhorse_delta WHERE level = 'tally'
) AS noted
GROUP BY queue, counted HAVING number > 0

-- name: all_tallies
SELECT queue, task, counted AS state, CAST(sum(amount) AS signed) AS number FROM (
    SELECT queue, task, counted, amount FROM {schema}.packhorse_measure WHERE level = 'tally' AND at = 0
    UNION ALL
    SELECT queue, task, counted, amount FROM {schema}.packhorse_delta WHERE level = 'tally'
) AS noted
GROUP BY queue, task, counted HAVING number > 0 ORDER BY queue, task, counted

-- name: put_order
INSERT INTO {schema}.packhorse_meta (`key`, value) VALUES ('order', $1) ON DUPLICATE KEY UPDATE value = VALUES(value)
