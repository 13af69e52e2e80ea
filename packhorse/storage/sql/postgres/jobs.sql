-- name: jobs_by_ids
SELECT {job} FROM {schema}.packhorse_job WHERE id = ANY (ARRAY(SELECT json_array_elements_text($1::json)))

-- name: stored_among
SELECT id FROM {schema}.packhorse_job WHERE id = ANY (ARRAY(SELECT json_array_elements_text($1::json)))

-- name: lock_jobs
SELECT {job} FROM {schema}.packhorse_job
WHERE id = ANY (ARRAY(SELECT json_array_elements_text($1::json))) ORDER BY id FOR UPDATE

-- name: unique_keys_of
SELECT unique_key FROM {schema}.packhorse_job
WHERE id = ANY (ARRAY(SELECT json_array_elements_text($1::json))) AND unique_key IS NOT NULL

-- name: enqueue
-- New jobs from a JSON list, each without what is as by default; with their events and what is counted. Ids that are
-- stored already are left out of the answer; so are all, while the storage is moved. With $3, wakes one sleeper that
-- serves one of their queues.
WITH clock AS MATERIALIZED (SELECT coalesce($2::bigint, {schema}.packhorse_now()) AS now),
wanted AS MATERIALIZED (
    SELECT wish.*, coalesce(wish.priority, 1) AS rated, clock.now,
           coalesce(wish.due_at, clock.now + coalesce(wish.delay, 0)) AS due,
           coalesce(wish.due_at, clock.now + coalesce(wish.delay, 0)) > clock.now AS waits
    FROM clock, ROWS FROM (json_to_recordset($1::json) AS (
        id text, task text, queue text, args text, priority smallint, delay bigint, due_at bigint,
        max_attempts integer, max_halts integer, timeout bigint, idle_timeout bigint, expires bigint,
        total_timeout bigint, "unique" json, persistent boolean, created_by text, schedule text, backoff text,
        meta text, copied_from text, chosen json
    )) WITH ORDINALITY AS wish (
        id, task, queue, args, priority, delay, due_at, max_attempts, max_halts, timeout, idle_timeout, expires,
        total_timeout, "unique", persistent, created_by, schedule, backoff, meta, copied_from, chosen, place
    )
),
stored AS (
    INSERT INTO {schema}.packhorse_job (
        id, task, queue, args, state, priority, rank, created_at, updated_at, due_at, queued_at, first_queued_at,
        max_attempts, max_halts, timeout, idle_timeout, expires, total_timeout, expire_at, unique_key, persistent,
        created_by, schedule, backoff, meta
    )
    SELECT id, task, queue, coalesce(args, '{}'), CASE WHEN waits THEN 'scheduled' ELSE 'queued' END,
           rated, 13 - rated, now, now,
           CASE WHEN waits THEN due END, CASE WHEN NOT waits THEN now END, CASE WHEN NOT waits THEN now END,
           coalesce(max_attempts, 0), coalesce(max_halts, 3), timeout, idle_timeout, expires, total_timeout,
           CASE WHEN NOT waits THEN now + least(expires, total_timeout) END, "unique" ->> 'key',
           coalesce(persistent, false)::integer, created_by, schedule, backoff, meta
    FROM wanted WHERE {open} ORDER BY place
    ON CONFLICT (id) DO NOTHING
    RETURNING id, seq, queue, task, state, due_at, created_at
),
copied AS (
    SELECT DISTINCT ON (id) id, copied_from, chosen FROM wanted
    WHERE copied_from IS NOT NULL OR chosen IS NOT NULL ORDER BY id, place
),
told AS (
    INSERT INTO {schema}.packhorse_event (at, kind, subject, job_id, queue, state, data)
    SELECT created_at, 'added', 'job', stored.id, queue, state,
           CASE WHEN due_at IS NOT NULL OR copied_from IS NOT NULL OR chosen IS NOT NULL THEN
               json_strip_nulls(json_build_object('due_at', due_at, 'copied_from', copied_from, 'chosen', chosen))::text
           END
    FROM stored LEFT JOIN copied ON copied.id = stored.id ORDER BY seq
),
numbers AS MATERIALIZED (SELECT queue, task, state, count(*) AS number FROM stored GROUP BY queue, task, state),
counted AS (
    INSERT INTO {schema}.packhorse_delta (level, at, queue, task, counted, amount)
    SELECT 'tally', 0, queue, task, state, number FROM numbers
    UNION ALL
    SELECT 'minute', now - now % 60000000, queue, task, 'added', number FROM numbers, clock
),
-- A waiter has asked when the next job is due, and would miss one that is due sooner.
urgent AS MATERIALIZED (
    SELECT DISTINCT queue FROM stored WHERE due_at IS NULL OR due_at < created_at + 2000000
),
woken AS (
    DELETE FROM {schema}.packhorse_sleeper WHERE channel = (
        SELECT channel FROM {schema}.packhorse_sleeper
        WHERE $3::boolean AND until > (SELECT now FROM clock) AND (SELECT count(*) > 0 FROM urgent)
          AND (queues = '{}' OR queues && ARRAY(SELECT queue FROM urgent))
        LIMIT 1 FOR UPDATE SKIP LOCKED
    )
    RETURNING pg_notify(channel, '')
)
SELECT id FROM stored

-- name: enqueue_one
-- As `enqueue`, for a single job that was not copied from another: half the work for the server.
WITH stored AS (
    INSERT INTO {schema}.packhorse_job (
        id, task, queue, args, state, priority, rank, created_at, updated_at, due_at, queued_at, first_queued_at,
        max_attempts, max_halts, timeout, idle_timeout, expires, total_timeout, expire_at, persistent, created_by,
        schedule, backoff, meta
    )
    SELECT $1, $2, $3, $4, CASE WHEN due > now THEN 'scheduled' ELSE 'queued' END, $5::smallint, 13 - $5, now, now,
           CASE WHEN due > now THEN due END, CASE WHEN due <= now THEN now END, CASE WHEN due <= now THEN now END,
           $8, $9, $10, $11, $12, $13, CASE WHEN due <= now THEN now + least($12::bigint, $13::bigint) END,
           $14::boolean::integer, $15, $16, $17, $18
    FROM (
        SELECT now, coalesce($7::bigint, now + $6::bigint) AS due
        FROM (SELECT coalesce($19::bigint, {schema}.packhorse_now()) AS now) AS clock
    ) AS times
    WHERE {open}
    ON CONFLICT (id) DO NOTHING
    RETURNING id, queue, task, state, due_at, created_at AS now
),
told AS (
    INSERT INTO {schema}.packhorse_event (at, kind, subject, job_id, queue, state, data)
    SELECT now, 'added', 'job', id, queue, state, '{"due_at":' || due_at || '}' FROM stored
),
counted AS (
    INSERT INTO {schema}.packhorse_delta (level, at, queue, task, counted, amount)
    SELECT 'tally', 0, queue, task, state, 1 FROM stored
    UNION ALL
    SELECT 'minute', now - now % 60000000, queue, task, 'added', 1 FROM stored
),
woken AS (
    DELETE FROM {schema}.packhorse_sleeper WHERE channel = (
        SELECT channel FROM {schema}.packhorse_sleeper
        WHERE until > (SELECT now FROM stored WHERE due_at IS NULL OR due_at < now + 2000000)
          AND (queues = '{}' OR $3 = ANY (queues))
        LIMIT 1 FOR UPDATE SKIP LOCKED
    )
    RETURNING pg_notify(channel, '')
)
SELECT id FROM stored

-- name: enqueue_plain
-- As `enqueue_one`, for a job without options except its priority: the most common.
WITH stored AS (
    INSERT INTO {schema}.packhorse_job (
        id, task, queue, args, state, priority, rank, created_at, updated_at, queued_at, first_queued_at, max_attempts
    )
    SELECT $1, $2, $3, $4, 'queued', $5::smallint, 13 - $5, now, now, now, now, 0
    FROM (SELECT coalesce($6::bigint, {schema}.packhorse_now()) AS now) AS clock
    WHERE {open}
    ON CONFLICT (id) DO NOTHING
    RETURNING id, created_at AS now
),
told AS (
    INSERT INTO {schema}.packhorse_event (at, kind, subject, job_id, queue, state)
    SELECT now, 'added', 'job', $1, $3, 'queued' FROM stored
),
counted AS (
    INSERT INTO {schema}.packhorse_delta (level, at, queue, task, counted, amount)
    SELECT level, at, $3, $2, what, 1 FROM stored, LATERAL (
        VALUES ('tally', 0, 'queued'), ('minute', now - now % 60000000, 'added')
    ) AS fact (level, at, what)
),
woken AS (
    DELETE FROM {schema}.packhorse_sleeper WHERE channel = (
        SELECT channel FROM {schema}.packhorse_sleeper
        WHERE until > (SELECT now FROM stored) AND (queues = '{}' OR $3 = ANY (queues))
        LIMIT 1 FOR UPDATE SKIP LOCKED
    )
    RETURNING pg_notify(channel, '')
)
SELECT id FROM stored

-- name: enqueue_alike
-- As `enqueue` does it, for many jobs that differ in nothing but ids ($1, the first is $21 and the last is $22) and
-- arguments ($4), a line each: a third of the work for the server. Their events are one pack. An id that is stored already
-- makes it fail. No row in the answer: the storage is moved.
-- What is the same for all is worked out once, in `shared`, and so is where their numbers begin: a value of the sequence
-- stands for itself and the 999 before it.
WITH shared AS MATERIALIZED (
    SELECT now, CASE WHEN due > now THEN due END AS due_at, CASE WHEN due <= now THEN now END AS queued_at,
           CASE WHEN due <= now THEN now + least($12::bigint, $13::bigint) END AS expire_at,
           CASE WHEN due > now THEN 'scheduled' ELSE 'queued' END AS state,
           nextval('{schema}.packhorse_job_seq_seq') - $20 AS seq_before,
           $5::smallint AS priority, (13 - $5)::smallint AS rank, $8::integer AS max_attempts,
           $9::integer AS max_halts, $14::boolean::integer::smallint AS persistent
    FROM (
        SELECT now, coalesce($7::bigint, now + $6::bigint) AS due
        FROM (SELECT coalesce($19::bigint, {schema}.packhorse_now()) AS now) AS clock
    ) AS asked
    WHERE {open}
),
stored AS (
    INSERT INTO {schema}.packhorse_job (
        seq, id, task, queue, args, state, priority, rank, created_at, updated_at, due_at, queued_at, first_queued_at,
        max_attempts, max_halts, timeout, idle_timeout, expires, total_timeout, expire_at, persistent, created_by,
        schedule, backoff, meta
    )
    SELECT seq_before + place, new.id, $2, $3, new.args, state, priority, rank, now, now, due_at, queued_at, queued_at,
           max_attempts, max_halts, $10, $11, $12, $13, expire_at, persistent, $15, $16, $17, $18
    FROM shared, unnest(string_to_array($1, E'\n'), string_to_array($4, E'\n')) WITH ORDINALITY AS new (id, args, place)
),
told AS (
    INSERT INTO {schema}.packhorse_event (at, kind, subject, queue, state, data, span, first_job, last_job, jobs)
    SELECT now, 'added', 'job', $3, state, '{"due_at":' || due_at || '}', $20 - 1, $21, $22, $1 FROM shared
),
counted AS (
    INSERT INTO {schema}.packhorse_delta (level, at, queue, task, counted, amount)
    SELECT 'tally', 0, $3, $2, state, $20::bigint FROM shared
    UNION ALL
    SELECT 'minute', now - now % 60000000, $3, $2, 'added', $20::bigint FROM shared
),
woken AS (
    DELETE FROM {schema}.packhorse_sleeper WHERE channel = (
        SELECT channel FROM {schema}.packhorse_sleeper
        WHERE until > (SELECT now FROM shared WHERE due_at IS NULL OR due_at < now + 2000000)
          AND (queues = '{}' OR $3 = ANY (queues))
        LIMIT 1 FOR UPDATE SKIP LOCKED
    )
    RETURNING pg_notify(channel, '')
)
SELECT now FROM shared

-- name: lock_keys
SELECT pg_advisory_xact_lock(number) FROM (
    SELECT DISTINCT hashtextextended('{schema}' || key, 5040) AS number
    FROM json_array_elements_text($1::json) AS key ORDER BY 1
) AS numbers

-- name: get_locks
SELECT key, job_id, period, until, taken_at FROM {schema}.packhorse_unique_lock
WHERE key = ANY (ARRAY(SELECT json_array_elements_text($1::json)))

-- name: replaced_by
-- The jobs whose calls these have replaced already: their answers were lost.
SELECT twin, job_id FROM {schema}.packhorse_replaced WHERE twin = ANY (ARRAY(SELECT json_array_elements_text($1::json)))

-- name: put_replaced
INSERT INTO {schema}.packhorse_replaced (twin, job_id, at) VALUES ($1, $2, $3) ON CONFLICT (twin) DO NOTHING

-- name: put_locks
INSERT INTO {schema}.packhorse_unique_lock (key, job_id, period, until, taken_at)
SELECT key, job_id, period, until, $5 FROM unnest($1::text[], $2::text[], $3::bigint[], $4::text[])
    AS lock (key, job_id, period, until)
ON CONFLICT (key) DO UPDATE
SET job_id = excluded.job_id, period = excluded.period, until = excluded.until, taken_at = excluded.taken_at

-- name: retake_lock
-- A retried job holds its key again. A lock that it has already stays as it is.
INSERT INTO {schema}.packhorse_unique_lock AS held (key, job_id, until, taken_at) VALUES ($1, $2, 'finish', $3)
ON CONFLICT (key) DO UPDATE
SET job_id = excluded.job_id, period = NULL, taken_at = excluded.taken_at WHERE held.job_id <> excluded.job_id

-- name: count_failure
-- A failure of another version of the code ends the silence.
INSERT INTO {schema}.packhorse_failure AS known (
    cause, task, pattern, place, number, first_at, last_at, last_job_id, first_version, last_version
)
VALUES ($1, $2, $3, $4, $5, $6, $7, $8, $9, $9)
ON CONFLICT (cause) DO UPDATE
SET number = known.number + 1, place = excluded.place, last_at = excluded.last_at,
    last_job_id = excluded.last_job_id, last_version = coalesce(excluded.last_version, known.last_version),
    silenced_until = CASE WHEN excluded.last_version <> known.silenced_version THEN NULL ELSE known.silenced_until END,
    silenced_by = CASE WHEN excluded.last_version <> known.silenced_version THEN NULL ELSE known.silenced_by END,
    silenced_version = CASE WHEN excluded.last_version <> known.silenced_version THEN NULL
                            ELSE known.silenced_version END

-- name: delete_jobs
DELETE FROM {schema}.packhorse_job WHERE seq = ANY (ARRAY(SELECT value::bigint FROM json_array_elements_text($1::json)))

-- name: delete_log
DELETE FROM {schema}.packhorse_log_line WHERE job_id = ANY (ARRAY(SELECT json_array_elements_text($1::json)))

-- name: delete_subscribers
DELETE FROM {schema}.packhorse_subscriber WHERE job_id = ANY (ARRAY(SELECT json_array_elements_text($1::json)))

-- name: delete_locks
DELETE FROM {schema}.packhorse_unique_lock
WHERE key = ANY (ARRAY(SELECT json_array_elements_text($1::json)))
  AND job_id = ANY (ARRAY(SELECT json_array_elements_text($2::json)))

-- name: know_task
INSERT INTO {schema}.packhorse_task (name, queue) VALUES ($1, $2) ON CONFLICT (name) DO NOTHING

-- name: know_queue
INSERT INTO {schema}.packhorse_queue (name) VALUES ($1) ON CONFLICT (name) DO NOTHING

-- name: announce_task
INSERT INTO {schema}.packhorse_task (name, queue, options, announced_at) VALUES ($1, $2, $3, $4)
ON CONFLICT (name) DO UPDATE
SET queue = excluded.queue, options = excluded.options, announced_at = excluded.announced_at

-- name: all_tasks
SELECT name, queue, options, announced_at FROM {schema}.packhorse_task ORDER BY name

-- name: all_queues
-- What there is to know of all queues, in one go: the queues, how many jobs each has in each state, and since when the
-- oldest in line waits. There may be thousands of queues: of each it hops from rank to rank in use. Where the first job of a
-- rank has not been in line since it was created, the first few are looked at, as many as `look_into` says: the planner
-- would go by the primary key, past all other jobs, if they were not asked for by rank, and a hundred at most.
WITH RECURSIVE numbers AS MATERIALIZED (
    SELECT queue, counted, sum(amount)::bigint AS number FROM {schema}.packhorse_counted
    WHERE level = 'tally' GROUP BY queue, counted HAVING sum(amount) > 0
),
head (queue, rank, queued_at, is_oldest) AS (
    SELECT numbers.queue, first.rank, first.queued_at, first.is_oldest FROM numbers CROSS JOIN LATERAL (
        SELECT job.rank, job.queued_at, job.queued_at = job.created_at AS is_oldest FROM {schema}.packhorse_job AS job
        WHERE job.state = 'queued' AND job.queue = numbers.queue ORDER BY job.rank, job.seq LIMIT 1
    ) AS first
    WHERE numbers.counted = 'queued'
    UNION ALL
    SELECT head.queue, next.rank, next.queued_at, next.is_oldest FROM head CROSS JOIN LATERAL (
        SELECT job.rank, job.queued_at, job.queued_at = job.created_at AS is_oldest FROM {schema}.packhorse_job AS job
        WHERE job.state = 'queued' AND job.queue = head.queue AND job.rank > head.rank
        ORDER BY job.rank, job.seq LIMIT 1
    ) AS next
)
SELECT name, '' AS what, paused_at, paused_by, paused_why, CASE WHEN timed_at = paused_at THEN paused_until END
FROM {schema}.packhorse_queue
UNION ALL
SELECT queue, counted, number, NULL, NULL, NULL FROM numbers
UNION ALL
SELECT queue, 'oldest', min(CASE WHEN is_oldest THEN queued_at ELSE (
    SELECT min(few.queued_at) FROM (
        SELECT hundred.queued_at FROM (
            SELECT job.rank, job.queued_at FROM {schema}.packhorse_job AS job
            WHERE job.state = 'queued' AND job.queue = head.queue AND job.rank >= head.rank
            ORDER BY job.rank, job.seq LIMIT 100
        ) AS hundred
        WHERE hundred.rank = head.rank
        LIMIT (
            SELECT CASE WHEN count(*) > 1000 THEN 1 ELSE 10000 / greatest(1, count(*)) END
            FROM head AS late WHERE NOT late.is_oldest
        )
    ) AS few
) END), NULL, NULL, NULL
FROM head GROUP BY queue

-- name: all_tallies
SELECT queue, task, counted AS state, sum(amount)::bigint AS number FROM {schema}.packhorse_counted
WHERE level = 'tally' GROUP BY queue, task, counted HAVING sum(amount) > 0 ORDER BY queue, task, counted

-- name: put_order
INSERT INTO {schema}.packhorse_meta (key, value) VALUES ('order', $1)
ON CONFLICT (key) DO UPDATE SET value = excluded.value
