-- name: gate
-- Whether the worker is known, and whether jobs are due or have expired.
SELECT (SELECT count(*) FROM {schema}.packhorse_worker WHERE id = $1), {late_at_2}

-- name: late
-- Whether jobs are due or have expired.
SELECT {late_at_1}

-- name: glance
-- Both, whether a job is queued in these queues, and how long it is until the next one is due.
SELECT (SELECT count(*) FROM {schema}.packhorse_worker WHERE id = $1), {late_at_2}, EXISTS ({has_work_for_3}),
       {due_in_at_2}

-- name: paused_queues
SELECT name FROM {schema}.packhorse_queue WHERE name IN ($1*) AND paused_at IS NOT NULL

-- name: next_rank
-- The lowest rank of this queue that has a queued job, in a part of the queue.
SELECT queue, `rank` FROM {schema}.packhorse_job FORCE INDEX (packhorse_job_line)
WHERE line = $1 AND $2 ORDER BY `rank`, seq LIMIT 1

-- name: first_ranks
-- The lowest rank that each of these queues has, if any. In one part for all, which is ten times as fast as one for each.
-- The order is written in full: MySQL would else sort the whole queue.
SELECT known.name, (
    SELECT job.`rank` FROM {schema}.packhorse_job AS job FORCE INDEX (packhorse_job_line)
    WHERE job.line = known.name ORDER BY job.line, job.`rank`, job.seq LIMIT 1
) AS lowest
FROM {schema}.packhorse_queue AS known WHERE known.name IN ($1*) HAVING lowest IS NOT NULL

-- name: length_of_line
SELECT $1, (SELECT count(*) FROM (
    SELECT 1 FROM {schema}.packhorse_job FORCE INDEX (packhorse_job_line) WHERE line = $1 AND $2 LIMIT $3
) AS job)

-- name: pick
SELECT {picked} FROM {schema}.packhorse_job FORCE INDEX (packhorse_job_line)
WHERE line = $1 AND $2 ORDER BY `rank`, seq LIMIT $3 FOR UPDATE SKIP LOCKED

-- name: jobs_by_seqs
SELECT {job} FROM {schema}.packhorse_job FORCE INDEX (PRIMARY) WHERE seq IN ($1*)

-- name: take
UPDATE {schema}.packhorse_job FORCE INDEX (PRIMARY)
SET state = 'reserved', owner = $1, fence = fence + 1, updated_at = $2,
    progress = NULL, progress_text = NULL, checkin = NULL, checkin_at = NULL,
    expire_at = CASE WHEN expire_at IS NULL THEN NULL ELSE first_queued_at + total_timeout END
WHERE seq IN ($3*)

-- name: complete_dealt
-- Jobs that are held for the first time, in one statement: $3, $4 and $5 say when each started, until when it ran, and its
-- result.
UPDATE {schema}.packhorse_job FORCE INDEX (PRIMARY)
SET state = 'completed', owner = NULL, last_owner = $1, started_at = $3, ran_until = $4, finished_at = $2,
    updated_at = $2, attempts = 1, result = $5, expire_at = NULL
WHERE seq IN ($6*) AND owner = $1 AND fence = 1 AND state = 'reserved'

-- name: lines_of_rank
-- The queues that have a queued job of this rank: each is looked up by its name, never over the jobs.
SELECT known.name FROM {schema}.packhorse_queue AS known
WHERE known.name > $2 AND (
    SELECT 1 FROM {schema}.packhorse_job AS job FORCE INDEX (packhorse_job_line)
    WHERE job.line = known.name AND job.`rank` = $1 LIMIT 1
) = 1
ORDER BY known.name LIMIT $3

-- name: first_in_line
-- Of each of these queues the first job of each rank: since when it waits, and whether since it was created. The order is
-- written in full: MySQL would else sort the whole queue.
SELECT first.name, first.number, job.queued_at, job.queued_at = job.created_at FROM (
    SELECT known.name, ranks.number, (
        SELECT job.seq FROM {schema}.packhorse_job AS job FORCE INDEX (packhorse_job_line)
        WHERE job.line = known.name AND job.`rank` = ranks.number ORDER BY job.line, job.`rank`, job.seq LIMIT 1
    ) AS seq
    FROM {schema}.packhorse_queue AS known CROSS JOIN (
        SELECT 0 AS number UNION ALL SELECT 1 UNION ALL SELECT 2 UNION ALL SELECT 3 UNION ALL SELECT 4
        UNION ALL SELECT 5 UNION ALL SELECT 6 UNION ALL SELECT 7 UNION ALL SELECT 8 UNION ALL SELECT 9
        UNION ALL SELECT 10 UNION ALL SELECT 11 UNION ALL SELECT 12
    ) AS ranks
    WHERE known.name IN ($1*)
) AS first STRAIGHT_JOIN {schema}.packhorse_job AS job FORCE INDEX (PRIMARY) ON job.seq = first.seq

-- name: oldest_in_line
-- Since when the oldest of the first jobs of a queue waits.
SELECT min(queued_at) FROM (
    SELECT queued_at FROM {schema}.packhorse_job FORCE INDEX (packhorse_job_line)
    WHERE line = $1 AND `rank` = $2 ORDER BY `rank`, seq LIMIT $3
) AS few

-- name: put_log_line
INSERT INTO {schema}.packhorse_log_line (job_id, at, attempt, kind, message) VALUES ($1, $2, $3, $4, $5)

-- name: last_line_above
-- The latest line that is too many, if a job may have so many.
SELECT id FROM {schema}.packhorse_log_line FORCE INDEX (packhorse_log_line_job)
WHERE job_id = $1 ORDER BY id DESC LIMIT 1 OFFSET $2

-- name: lines_to_drop
-- Those up to that one, and the next, which will say how many are gone. The text only of those that say so already.
SELECT CASE WHEN message LIKE '… % dropped …' THEN message ELSE '' END
FROM {schema}.packhorse_log_line FORCE INDEX (packhorse_log_line_job)
WHERE job_id = $1 AND id <= coalesce((
    SELECT min(id) FROM {schema}.packhorse_log_line FORCE INDEX (packhorse_log_line_job) WHERE job_id = $1 AND id > $2
), $2)

-- name: drop_lines
DELETE gone FROM {schema}.packhorse_log_line AS gone FORCE INDEX (packhorse_log_line_job)
WHERE job_id = $1 AND id <= $2

-- name: say_dropped
UPDATE {schema}.packhorse_log_line SET message = $1, kind = 'log'
WHERE id = (SELECT id FROM (SELECT min(id) AS id FROM {schema}.packhorse_log_line WHERE job_id = $2) AS first)
