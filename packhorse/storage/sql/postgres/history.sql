-- name: log_of
SELECT message, kind, at, attempt, id FROM {schema}.packhorse_log_line
WHERE job_id <= $1 AND (job_id, id) > ($1, $2) ORDER BY job_id, id LIMIT $3

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
-- Along the levels and times, of which there are few for causes; the empty text keeps the server from going by many causes.
SELECT queue, at - at % $1 AS point, sum(amount)::bigint
FROM {schema}.packhorse_counted
WHERE level = ANY (ARRAY(SELECT json_array_elements_text($2::json))) AND at >= $3
  AND queue || '' = ANY (ARRAY(SELECT json_array_elements_text($4::json)))
GROUP BY queue, point
ORDER BY point

-- name: series
-- The counts of one task in one queue in an interval are one JSON object: a tenth of the rows.
SELECT point, queue, task, json_object_agg(counted, amount)::text FROM (
    SELECT at - at % $1 AS point, queue, task, counted, sum(amount)::bigint AS amount
    FROM {schema}.packhorse_counted
    WHERE level = ANY (ARRAY(SELECT json_array_elements_text($2::json))) AND at >= $3
      AND ($4::text IS NULL OR queue = $4) AND ($5::text IS NULL OR task = $5)
    GROUP BY point, queue, task, counted
) AS points
GROUP BY point, queue, task
ORDER BY point, queue, task

-- name: series_of_level
SELECT at, queue, task, json_object_agg(counted, amount)::text FROM (
    SELECT at, queue, task, counted, sum(amount)::bigint AS amount
    FROM {schema}.packhorse_counted
    WHERE level = $1 AND at >= $2 AND ($3::text IS NULL OR queue = $3) AND ($4::text IS NULL OR task = $4)
    GROUP BY at, queue, task, counted
) AS points
GROUP BY at, queue, task
ORDER BY at, queue, task

-- name: totals
SELECT counted, sum(amount)::bigint FROM {schema}.packhorse_counted WHERE level <> 'tally' AND counted <> 'caused'
GROUP BY counted

-- name: server_facts
SELECT current_setting('server_version'), current_setting('synchronous_commit'), current_setting('fsync'),
       pg_total_relation_size('{schema}.packhorse_job') + pg_total_relation_size('{schema}.packhorse_event'),
       (SELECT coalesce(sum(n_dead_tup), 0)::bigint FROM pg_stat_user_tables
        WHERE relid = '{schema}.packhorse_job'::regclass),
       (SELECT count(*) FROM pg_stat_activity WHERE datname = current_database()),
       current_setting('max_connections')::integer,
       (SELECT extract(epoch FROM max(now() - xact_start))::integer FROM pg_stat_activity
        WHERE datname = current_database() AND pid <> pg_backend_pid())

-- name: now
SELECT {schema}.packhorse_now()

-- name: which_server
-- The time, and which database of which running server this is. Does not use our schema, which may not be there.
SELECT (extract(epoch FROM statement_timestamp()) * 1000000)::bigint, current_database()::text,
       (extract(epoch FROM pg_postmaster_start_time()) * 1000000)::bigint

-- name: put_events
INSERT INTO {schema}.packhorse_event (at, kind, subject, job_id, queue, state, owner, fence, data)
SELECT at, kind, subject, job_id, queue, state, nullif(owner, ''), nullif(fence, 0), nullif(data, '')
FROM unnest($1::bigint[], $2::text[], $3::text[], $4::text[], $5::text[], $6::text[], $7::text[], $8::bigint[],
            $9::text[]) WITH ORDINALITY
    AS event (at, kind, subject, job_id, queue, state, owner, fence, data, place)
ORDER BY place

-- name: put_deltas
INSERT INTO {schema}.packhorse_delta (level, at, queue, task, counted, amount)
SELECT * FROM unnest($1::text[], $2::bigint[], $3::text[], $4::text[], $5::text[], $6::bigint[])

-- name: put_waiter
-- Write a waiter's row, which lasts so long. Returns whether a job is queued already. One that comes at this very moment is
-- missed, and found by the next look.
WITH sleeper AS (
    INSERT INTO {schema}.packhorse_sleeper (channel, queues, until)
    VALUES ($1, ARRAY(SELECT json_array_elements_text($2::json)), coalesce($4::bigint, {schema}.packhorse_now()) + $3)
    ON CONFLICT (channel) DO UPDATE SET queues = excluded.queues, until = excluded.until
)
SELECT {open} AND EXISTS (
    SELECT 1 FROM json_array_elements_text($2::json) AS name (queue)
    WHERE (
        SELECT true FROM {schema}.packhorse_job AS job WHERE job.state = 'queued' AND job.queue = name.queue
        AND (job.rank = 1 OR NOT EXISTS (
            SELECT 1 FROM {schema}.packhorse_queue AS queue
            WHERE queue.name = name.queue AND queue.paused_at IS NOT NULL
        ))
        ORDER BY job.rank LIMIT 1
    )
)

-- name: remove_waiter
DELETE FROM {schema}.packhorse_sleeper WHERE channel = $1

-- name: has_work
-- Whether a job is queued in these queues.
SELECT {open} AND EXISTS (
    SELECT 1 FROM json_array_elements_text($1::json) AS name (queue)
    WHERE (
        SELECT true FROM {schema}.packhorse_job AS job WHERE job.state = 'queued' AND job.queue = name.queue
        AND (job.rank = 1 OR NOT EXISTS (
            SELECT 1 FROM {schema}.packhorse_queue AS queue
            WHERE queue.name = name.queue AND queue.paused_at IS NOT NULL
        ))
        ORDER BY job.rank LIMIT 1
    )
)

-- name: wake
DELETE FROM {schema}.packhorse_sleeper WHERE channel = (
    SELECT channel FROM {schema}.packhorse_sleeper
    WHERE until > coalesce($1::bigint, {schema}.packhorse_now()) LIMIT 1 FOR UPDATE SKIP LOCKED
)
RETURNING pg_notify(channel, '')

-- name: wake_others
-- No waiter has named this queue: wake all that want other queues, to see whether its jobs are for them.
DELETE FROM {schema}.packhorse_sleeper WHERE channel IN (
    SELECT channel FROM {schema}.packhorse_sleeper
    WHERE '*' = ANY (queues) AND until > $2 AND NOT EXISTS (
        SELECT 1 FROM {schema}.packhorse_sleeper WHERE until > $2 AND (queues = '{}' OR $1 = ANY (queues))
    )
    FOR UPDATE SKIP LOCKED
)
RETURNING pg_notify(channel, '')

-- name: hint
-- For a caller's transaction: the waiter is notified when it commits. Its row is not touched, as it could stay locked for
-- long.
SELECT pg_notify(channel, '') FROM {schema}.packhorse_sleeper
WHERE until > $2 AND (queues = '{}' OR queues && ARRAY(SELECT json_array_elements_text($1::json))) LIMIT 1
