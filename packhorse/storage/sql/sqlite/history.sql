-- name: packs_of
SELECT packs FROM packhorse_old_packs WHERE job_id = ?
UNION ALL
SELECT packs FROM packhorse_job WHERE id = ?

-- name: log_of
SELECT message, kind, at, attempt, id FROM packhorse_log_line WHERE job_id = ? AND id > ? ORDER BY id LIMIT ?

-- name: latest_failures
SELECT cause, task, pattern, place, number, first_at, last_at, last_job_id, silenced_until, silenced_by,
       first_version, last_version, silenced_version
FROM packhorse_failure ORDER BY last_at DESC, cause LIMIT ?

-- name: get_silence
SELECT task, silenced_until IS NOT NULL OR silenced_version IS NOT NULL FROM packhorse_failure WHERE cause = ?

-- name: silence_failure
UPDATE packhorse_failure SET silenced_until = ?, silenced_by = ?, silenced_version = ?
WHERE cause = ?

-- name: cause_series
SELECT queue, at - at % ?1 AS point, sum(amount)
FROM packhorse_measure
WHERE level IN (SELECT value FROM json_each(?2)) AND at >= ?3 AND queue IN (SELECT value FROM json_each(?4))
GROUP BY queue, point
ORDER BY point

-- name: series
-- The counts of one task in one queue in an interval are one JSON object: a tenth of the rows.
SELECT point, queue, task, json_group_object(counted, amount) FROM (
    SELECT at - at % ?1 AS point, queue, task, counted, sum(amount) AS amount
    FROM packhorse_measure
    WHERE level IN (SELECT value FROM json_each(?2)) AND at >= ?3
      AND (?4 IS NULL OR queue = ?4) AND (?5 IS NULL OR task = ?5)
    GROUP BY point, queue, task, counted
)
GROUP BY point, queue, task
ORDER BY point, queue, task

-- name: series_of_level
-- The same where each interval is a point: the rows are in this order already.
SELECT at, queue, task, json_group_object(counted, amount) FROM packhorse_measure
WHERE level = ?1 AND at >= ?2 AND (?3 IS NULL OR queue = ?3) AND (?4 IS NULL OR task = ?4)
GROUP BY at, queue, task
ORDER BY at, queue, task

-- name: totals
SELECT counted, sum(amount) FROM packhorse_measure WHERE counted <> 'caused' GROUP BY counted

-- name: file_facts
SELECT
    (SELECT page_count FROM pragma_page_count()), (SELECT page_size FROM pragma_page_size()),
    (SELECT freelist_count FROM pragma_freelist_count()), sqlite_version()

-- name: get_move
SELECT value FROM packhorse_meta WHERE key = 'move'
