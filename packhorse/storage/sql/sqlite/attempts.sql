-- name: worker_and_move
-- No row: the worker is unknown. With the mark of a move the storage is closed, and nothing is reserved.
SELECT (SELECT value FROM packhorse_meta WHERE key = 'move') FROM packhorse_worker WHERE id = ?

-- name: paused_queues
SELECT name FROM packhorse_queue WHERE paused_at IS NOT NULL

-- name: next_rank
SELECT min(rank) FROM packhorse_job WHERE state = 'queued' AND rank > ?

-- name: lines_of_rank
-- The queues that have a queued job of this rank: hops from name to name along the index, never over the jobs.
WITH RECURSIVE line (queue) AS (
    SELECT (SELECT min(queue) FROM packhorse_job WHERE state = 'queued' AND rank = ?1 AND queue > ?2)
    UNION ALL
    SELECT (SELECT min(queue) FROM packhorse_job WHERE state = 'queued' AND rank = ?1 AND queue > line.queue)
    FROM line WHERE line.queue IS NOT NULL
    LIMIT ?3
)
SELECT queue FROM line WHERE queue IS NOT NULL

-- name: lines_with_jobs
-- The first of these queues that have jobs of this rank, and how many, up to what matters.
-- All in one row: the driver releases the GIL for each, and must wait for it while jobs run.
SELECT json_group_array(json_array(name, (
    SELECT count(*) FROM (SELECT 1 FROM packhorse_job WHERE state = 'queued' AND rank = ?2 AND queue = name LIMIT ?4)
)))
FROM (
    SELECT value AS name FROM json_each(?1)
    WHERE EXISTS (SELECT 1 FROM packhorse_job WHERE state = 'queued' AND rank = ?2 AND queue = value)
    ORDER BY key LIMIT ?3
)

-- name: head_of_line
-- The last value says whether the job is plain: it has only what the other values show.
-- All in one row, for the same reason.
SELECT json_group_array(json_array({plain}, is_plain)) FROM (
    SELECT {plain}, {is_plain} AS is_plain
    FROM packhorse_job WHERE state = 'queued' AND rank = ? AND queue = ? ORDER BY seq LIMIT ?
)

-- name: heads_of_lines
-- The same for several queues of one rank, of each as many. The last value but one is the job's queue.
SELECT json_group_array(json_array({plain}, queue, is_plain)) FROM (
    SELECT {plain}, queue, {is_plain} AS is_plain
    FROM (SELECT value AS line FROM json_each(?1)) CROSS JOIN packhorse_job
    WHERE seq IN (
        SELECT seq FROM packhorse_job WHERE state = 'queued' AND rank = ?2 AND queue = line ORDER BY seq LIMIT ?3
    )
    ORDER BY seq
)

-- name: next_of_lines
-- The same without knowing which of them have jobs: as many of each, the queues in order, until there are enough.
SELECT json_group_array(json_array({plain}, queue, is_plain)) FROM (
    SELECT {plain}, queue, {is_plain} AS is_plain
    FROM (SELECT value AS line FROM json_each(?1)) CROSS JOIN packhorse_job
    WHERE seq IN (
        SELECT seq FROM packhorse_job WHERE state = 'queued' AND rank = ?2 AND queue = line ORDER BY seq LIMIT ?3
    )
    LIMIT ?4
)

-- name: take_plain
UPDATE packhorse_job SET state = 'reserved', owner = ?, fence = 1, updated_at = ?, packs = packs || ?
WHERE state = 'queued' AND rank = ? AND queue = ? AND seq BETWEEN ? AND ?

-- name: take_any
UPDATE packhorse_job
SET state = 'reserved', owner = ?, fence = fence + 1, updated_at = ?, packs = packs || ?,
    progress = NULL, progress_text = NULL, checkin = NULL, checkin_at = NULL,
    expire_at = CASE WHEN expire_at IS NULL THEN NULL ELSE first_queued_at + total_timeout END
WHERE state = 'queued' AND rank = ? AND queue = ? AND seq BETWEEN ? AND ?

-- name: take_scattered
-- Plain jobs of several queues.
UPDATE packhorse_job SET state = 'reserved', owner = ?, fence = 1, updated_at = ?, packs = packs || ?
WHERE seq IN (SELECT value FROM json_each(?))

-- name: long_packs
-- The row of a job that is reserved again and again must not grow forever.
SELECT id, packs FROM packhorse_job WHERE seq IN (SELECT value FROM json_each(?)) AND length(packs) > 1000

-- name: put_old_packs
INSERT INTO packhorse_old_packs (job_id, packs, at) VALUES (?, ?, ?)

-- name: clear_packs
UPDATE packhorse_job SET packs = '' WHERE id = ?

-- name: oldest_in_line
-- For each of these queues, since when its oldest queued job waits: of each rank the first, or, if that was not queued
-- when it was created, the oldest of the first few, as many as `look_into` says.
WITH RECURSIVE rank (number) AS (SELECT 0 UNION ALL SELECT number + 1 FROM rank WHERE number < 12),
first (queue, rank, seq) AS MATERIALIZED (
    SELECT name.value, rank.number, (
        SELECT seq FROM packhorse_job
        WHERE state = 'queued' AND packhorse_job.rank = rank.number AND queue = name.value ORDER BY seq LIMIT 1
    )
    FROM json_each(?) AS name, rank
),
head (queue, rank, queued_at, is_oldest) AS MATERIALIZED (
    SELECT first.queue, first.rank, job.queued_at, job.queued_at = job.created_at
    FROM first CROSS JOIN packhorse_job AS job ON job.seq = first.seq
)
SELECT head.queue, min(CASE WHEN head.is_oldest THEN head.queued_at ELSE (
    SELECT min(queued_at) FROM (
        SELECT queued_at FROM packhorse_job
        WHERE state = 'queued' AND packhorse_job.rank = head.rank AND queue = head.queue ORDER BY seq
        LIMIT (SELECT iif(count(*) > 1000, 1, min(100, 10000 / max(1, count(*)))) FROM head WHERE NOT is_oldest)
    )
) END)
FROM head GROUP BY head.queue

-- name: complete_together
-- Jobs with consecutive numbers: ?6, ?7 and ?8 say how long ago each started, and ran until, and its result. ?9 is a result
-- that all have. One statement for all, for the same reason. The plus keeps SQLite from using the index by owner.
UPDATE packhorse_job
SET state = 'completed', owner = NULL, last_owner = ?1, started_at = ?2 - (?6 ->> (seq - ?4)),
    ran_until = ?2 - (?7 ->> (seq - ?4)), finished_at = ?2, updated_at = ?2, attempts = 1,
    result = coalesce(?8 ->> (seq - ?4), ?9), expire_at = NULL, packs = packs || ?3
WHERE seq BETWEEN ?4 AND ?5 AND +owner = ?1 AND fence = 1 AND state = 'reserved'

-- name: complete_scattered
-- The same for jobs that are far apart: each in a row of ?4.
UPDATE packhorse_job
SET state = 'completed', owner = NULL, last_owner = ?1, started_at = ?2 - (dealt.value ->> 1),
    ran_until = ?2 - (dealt.value ->> 2), finished_at = ?2, updated_at = ?2, attempts = 1, result = dealt.value ->> 3,
    expire_at = NULL, packs = packs || ?3
FROM json_each(?4) AS dealt
WHERE seq = dealt.value ->> 0 AND +owner = ?1 AND fence = 1 AND state = 'reserved'

-- name: put_log_line
INSERT INTO packhorse_log_line (job_id, at, attempt, kind, message) VALUES (?, ?, ?, ?, ?)

-- name: last_line_above
-- The latest line that is too many, if a job may have so many.
SELECT id FROM packhorse_log_line WHERE job_id = ? ORDER BY id DESC LIMIT 1 OFFSET ?

-- name: lines_to_drop
-- Those up to that one, and the next, which will say how many are gone. The text only of those that say so already.
SELECT CASE WHEN message LIKE '… % dropped …' THEN message ELSE '' END FROM packhorse_log_line
WHERE job_id = ?1 AND id <= coalesce((SELECT min(id) FROM packhorse_log_line WHERE job_id = ?1 AND id > ?2), ?2)

-- name: drop_lines
DELETE FROM packhorse_log_line WHERE job_id = ? AND id <= ?

-- name: say_dropped
UPDATE packhorse_log_line SET message = ?, kind = 'log'
WHERE id = (SELECT min(id) FROM packhorse_log_line WHERE job_id = ?)
