-- name: log_of
SELECT message, kind, at, attempt, id FROM {schema}.packhorse_log_line FORCE INDEX (packhorse_log_line_job)
WHERE job_id = $1 AND id > $2 ORDER BY id LIMIT $3

-- name: latest_failures
SELECT cause, task, pattern, place, number, first_at, last_at, last_job_id, silenced_until, silenced_by,
       first_version, last_version, silenced_version
FROM {schema}.packhorse_failure ORDER BY last_at DESC, cause LIMIT $1

-- name: get_silence
SELECT task, silenced_until IS NOT NULL OR silenced_version IS NOT NULL FROM {schema}.packhorse_failure WHERE cause = $1 FOR UPDATE

-- name: silence_failure
UPDATE {schema}.packhorse_failure SET silenced_until = $1, silenced_by = $2, silenced_version = $3
WHERE cause = $4

-- name: cause_series
SELECT queue, at - at % $1 AS point, CAST(sum(amount) AS signed)
FROM (
    SELECT at, queue, amount FROM {schema}.packhorse_measure WHERE level IN ($2*) AND at >= $3 AND queue IN ($4*)
    UNION ALL
    SELECT at, queue, amount FROM {schema}.packhorse_delta WHERE level IN ($2*) AND at >= $3 AND queue IN ($4*)
) AS noted
GROUP BY queue, point
ORDER BY point

-- name: measured
-- The counts of a level, along the primary key. All values of a point are one JSON object: the driver would take ten times
-- as long for a row of each.
SELECT at, queue, task, JSON_OBJECTAGG(counted, amount) FROM {schema}.packhorse_measure FORCE INDEX (PRIMARY)
WHERE level = $1 AND at >= $2 AND ($3 IS NULL OR queue = $3) AND ($4 IS NULL OR task = $4)
GROUP BY at, queue, task

-- name: unfolded_measures
-- The same for what is not folded yet.
SELECT at, queue, task, JSON_OBJECTAGG(counted, amount) FROM (
    SELECT at, queue, task, counted, CAST(sum(amount) AS signed) AS amount FROM {schema}.packhorse_delta
    WHERE level = 'minute' AND at >= $1 AND ($2 IS NULL OR queue = $2) AND ($3 IS NULL OR task = $3)
    GROUP BY at, queue, task, counted
) AS noted
GROUP BY at, queue, task

-- name: totals
-- Each half is summed by itself: the server would put all rows of both into a table first.
SELECT counted, CAST(sum(amount) AS signed) FROM (
    SELECT counted, sum(amount) AS amount FROM {schema}.packhorse_measure WHERE level <> 'tally' GROUP BY counted
    UNION ALL
    SELECT counted, sum(amount) AS amount FROM {schema}.packhorse_delta WHERE level <> 'tally' GROUP BY counted
) AS noted
WHERE counted <> 'caused' GROUP BY counted

-- name: now
SELECT {now}

-- name: put_events
INSERT INTO {schema}.packhorse_event (at, kind, subject, job_id, queue, state, owner, fence, data) VALUES $1()

-- name: put_deltas
INSERT INTO {schema}.packhorse_delta (level, at, queue, task, counted, amount) VALUES $1()

-- name: has_work
-- Whether a job is queued in these queues.
{has_work_for_1}

-- name: server_facts
SELECT version(), @@version_comment, @@innodb_flush_log_at_trx_commit, @@max_connections, @@max_allowed_packet,
       (SELECT sum(data_length + index_length) FROM information_schema.tables
        WHERE table_schema = $1 AND table_name LIKE 'packhorse%')

-- name: server_counters
SHOW GLOBAL STATUS WHERE Variable_name IN ('Threads_connected', 'Innodb_history_list_length')
