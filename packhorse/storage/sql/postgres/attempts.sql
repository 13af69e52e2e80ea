-- name: lines
-- The ranks in which each of these queues has jobs in line, and how many, up to a limit: a hop from rank to rank along
-- the index, never over the jobs. Paused queues show only their forced jobs. The first two columns, which stand alone
-- when there is no line, tell whether the worker is known, and whether jobs are due or have expired; the third when the
-- next is due. Of very many lines a part is shown, beginning behind the queue $6. The last column names the queues that
-- have jobs in line which a pause keeps there.
WITH RECURSIVE clock AS MATERIALIZED (
    SELECT coalesce($4::bigint, {schema}.packhorse_now()) AS now,
           (SELECT due_at FROM {schema}.packhorse_job WHERE due_at IS NOT NULL ORDER BY due_at LIMIT 1) AS due_at
),
gate AS MATERIALIZED (
    SELECT EXISTS (SELECT 1 FROM {schema}.packhorse_worker WHERE id = $3) AS is_known,
           NOT $5::boolean AND (
               coalesce(due_at <= now, false) OR EXISTS (SELECT 1 FROM {schema}.packhorse_job WHERE expire_at <= now)
           ) AS is_late,
           due_at - now AS due_in
    FROM clock
),
line (queue, rank) AS (
    SELECT name.queue, (
        SELECT job.rank FROM {schema}.packhorse_job AS job
        WHERE job.state = 'queued' AND job.queue = name.queue ORDER BY job.rank LIMIT 1
    )
    FROM json_array_elements_text($1::json) AS name (queue)
    UNION ALL
    SELECT line.queue, (
        SELECT job.rank FROM {schema}.packhorse_job AS job
        WHERE job.state = 'queued' AND job.queue = line.queue AND job.rank > line.rank ORDER BY job.rank LIMIT 1
    )
    FROM line WHERE line.rank IS NOT NULL
),
seen AS MATERIALIZED (
    SELECT line.rank, line.queue, line.rank <> 1 AND EXISTS (
        SELECT 1 FROM {schema}.packhorse_queue AS queue WHERE queue.name = line.queue AND queue.paused_at IS NOT NULL
    ) AS is_paused
    FROM line WHERE line.rank IS NOT NULL
),
open AS MATERIALIZED (
    SELECT rank, queue FROM seen WHERE {open} AND NOT is_paused ORDER BY rank, queue <= $6, queue LIMIT $7
),
-- With many queues the length of each does not matter: a part of what is asked for is there in any case.
enough AS MATERIALIZED (
    SELECT CASE WHEN count(*) <= 20 THEN $2::bigint ELSE greatest(10, 8 * $2 / count(*)) END AS number FROM open
)
SELECT gate.is_known, gate.is_late, gate.due_in, open.rank, open.queue, (
    SELECT count(*) FROM (
        SELECT 1 FROM {schema}.packhorse_job AS job
        WHERE job.state = 'queued' AND job.queue = open.queue AND job.rank = open.rank
        LIMIT (SELECT number FROM enough)
    ) AS job
), (SELECT array_agg(DISTINCT queue) FROM seen WHERE is_paused)
FROM gate LEFT JOIN open ON NOT gate.is_late ORDER BY open.rank, open.queue

-- name: lines_from
-- The same with a scan cursor: a JSON list of queues, ranks and first numbers.
WITH clock AS MATERIALIZED (
    SELECT coalesce($4::bigint, {schema}.packhorse_now()) AS now,
           (SELECT due_at FROM {schema}.packhorse_job WHERE due_at IS NOT NULL ORDER BY due_at LIMIT 1) AS due_at
),
gate AS MATERIALIZED (
    SELECT EXISTS (SELECT 1 FROM {schema}.packhorse_worker WHERE id = $3) AS is_known,
           NOT $5::boolean AND (
               coalesce(due_at <= now, false) OR EXISTS (SELECT 1 FROM {schema}.packhorse_job WHERE expire_at <= now)
           ) AS is_late,
           due_at - now AS due_in
    FROM clock
),
seen AS MATERIALIZED (
    SELECT line.rank, line.queue, job.number, line.rank <> 1 AND EXISTS (
        SELECT 1 FROM {schema}.packhorse_queue AS queue WHERE queue.name = line.queue AND queue.paused_at IS NOT NULL
    ) AS is_paused
    FROM json_to_recordset($1::json) AS line (queue text, rank integer, start bigint)
    CROSS JOIN LATERAL (
        SELECT count(*) AS number FROM (
            SELECT 1 FROM {schema}.packhorse_job AS job
            WHERE job.state = 'queued' AND job.queue = line.queue
              AND (job.rank, job.seq) >= (line.rank, line.start) AND job.rank <= line.rank
            ORDER BY job.rank, job.seq LIMIT $2
        ) AS job
    ) AS job
    WHERE job.number > 0
),
open AS MATERIALIZED (
    SELECT rank, queue, number FROM seen WHERE {open} AND NOT is_paused ORDER BY rank, queue <= $6, queue LIMIT $7
)
SELECT gate.is_known, gate.is_late, gate.due_in, open.rank, open.queue, open.number,
       (SELECT array_agg(DISTINCT queue) FROM seen WHERE is_paused)
FROM gate LEFT JOIN open ON NOT gate.is_late ORDER BY open.rank, open.queue

-- name: take
-- Reserve from lines, each a queue, a lowest and a highest rank, the seq to begin with, and a share. Takes nothing if the
-- worker is unknown, or if jobs are due or have expired and must be promoted or aborted first; $5 takes jobs anyway. The
-- first two columns say which, the next two when the next job is due and how many microseconds the search took; if nothing
-- is taken they stand alone. A worker that got all it asked for wakes the next waiter.
WITH clock AS MATERIALIZED (
    SELECT coalesce($2::bigint, {schema}.packhorse_now()) AS now,
           (SELECT due_at FROM {schema}.packhorse_job WHERE due_at IS NOT NULL ORDER BY due_at LIMIT 1) AS due_at
),
gate AS MATERIALIZED (
    SELECT now, EXISTS (SELECT 1 FROM {schema}.packhorse_worker WHERE id = $1) AS is_known,
           NOT $5::boolean AND (
               coalesce(due_at <= now, false) OR EXISTS (SELECT 1 FROM {schema}.packhorse_job WHERE expire_at <= now)
           ) AS is_late,
           due_at - now AS due_in
    FROM clock
),
picked AS MATERIALIZED (
    SELECT job.seq
    FROM json_to_recordset($3::json) AS line (queue text, low integer, high integer, start bigint, share bigint)
    CROSS JOIN LATERAL (
        SELECT seq FROM {schema}.packhorse_job
        WHERE (SELECT is_known AND NOT is_late AND {open} FROM gate)
          AND state = 'queued' AND queue = line.queue AND (rank, seq) >= (line.low, line.start) AND rank <= line.high
          AND (rank = 1 OR NOT EXISTS (
              SELECT 1 FROM {schema}.packhorse_queue AS queue
              WHERE queue.name = line.queue AND queue.paused_at IS NOT NULL
          ))
        ORDER BY rank, seq LIMIT line.share FOR UPDATE SKIP LOCKED
    ) AS job
    LIMIT $4
),
walk AS MATERIALIZED ( -- nothing is changed before its end is known
    SELECT count(*) AS number, (extract(epoch FROM clock_timestamp() - statement_timestamp()) * 1000000)::bigint AS took
    FROM picked
),
taken AS (
    UPDATE {schema}.packhorse_job AS job
    SET state = 'reserved', owner = $1, fence = fence + 1, updated_at = gate.now,
        progress = NULL, progress_text = NULL, checkin = NULL, checkin_at = NULL,
        expire_at = CASE WHEN expire_at IS NULL THEN NULL ELSE first_queued_at + total_timeout END
    FROM gate, walk WHERE job.seq = ANY (ARRAY(SELECT seq FROM picked)) AND walk.number > 0
    RETURNING {job_columns}
),
told AS (
    INSERT INTO {schema}.packhorse_event (at, kind, subject, job_id, queue, state, owner, fence)
    SELECT updated_at, 'reserved', 'job', id, queue, 'reserved', owner, fence FROM taken
),
numbers AS MATERIALIZED (SELECT queue, task, count(*) AS number FROM taken GROUP BY queue, task),
counted AS (
    INSERT INTO {schema}.packhorse_delta (level, at, queue, task, counted, amount)
    SELECT 'tally', 0, queue, task, state, factor * number
    FROM numbers, (VALUES ('queued', -1), ('reserved', 1)) AS moved (state, factor)
),
woken AS (
    DELETE FROM {schema}.packhorse_sleeper WHERE channel = (
        SELECT channel FROM {schema}.packhorse_sleeper
        WHERE (SELECT count(*) FROM taken) >= $4
          AND until > (SELECT now FROM clock) AND (queues = '{}' OR queues && ARRAY(SELECT queue FROM numbers))
        LIMIT 1 FOR UPDATE SKIP LOCKED
    )
    RETURNING pg_notify(channel, '')
)
SELECT gate.is_known, gate.is_late, gate.due_in, walk.took, taken.*
FROM gate CROSS JOIN walk LEFT JOIN taken ON true ORDER BY taken.rank, taken.seq

-- name: start_jobs
-- Returns the ids that are running now, each with how many rows were added to those to be folded.
WITH clock AS MATERIALIZED (SELECT coalesce($2::bigint, {schema}.packhorse_now()) AS now),
held AS MATERIALIZED (
    SELECT job.*, greatest(now - token.ago, queued_at, 0) AS started_at
    FROM clock, json_to_recordset($1::json) AS token (job_id text, owner text, fence bigint, ago bigint)
    CROSS JOIN LATERAL (
        SELECT seq, id, queue, task, owner, fence, queued_at FROM {schema}.packhorse_job
        WHERE id = token.job_id AND (owner = token.owner AND state = 'reserved') IS TRUE AND fence = token.fence
        FOR UPDATE -- IS TRUE keeps the server from walking over all that this owner holds, or over all that have run
    ) AS job
),
started AS (
    UPDATE {schema}.packhorse_job AS job
    SET state = 'running', attempts = attempts + 1, started_at = held.started_at, updated_at = now
    FROM held, clock WHERE job.seq = ANY (ARRAY[held.seq])
),
told AS (
    INSERT INTO {schema}.packhorse_event (at, kind, subject, job_id, queue, state, owner, fence)
    SELECT started_at, 'started', 'job', id, queue, 'running', owner, fence FROM held
),
counted AS (
    INSERT INTO {schema}.packhorse_delta (level, at, queue, task, counted, amount)
    SELECT 'tally', 0, queue, task, state, factor * count(*)
    FROM held, (VALUES ('reserved', -1), ('running', 1)) AS moved (state, factor) GROUP BY queue, task, state, factor
    RETURNING 1
)
SELECT id, (SELECT count(*) FROM counted) FROM held

-- name: complete
-- The most common outcome, as `transitions.settled` does it. Returns the ids whose outcome was accepted, each with how many
-- rows were added to those to be folded. With $3, nothing is accepted unless that worker is known.
WITH clock AS MATERIALIZED (SELECT coalesce($2::bigint, {schema}.packhorse_now()) AS now),
held AS MATERIALIZED (
    SELECT job.seq, job.id, job.queue, job.task, job.state, job.owner, job.fence, job.queued_at,
           outcome.result, outcome.ran, outcome.place, now,
           CASE WHEN job.state = 'reserved' THEN greatest(now - outcome.ago - outcome.ran, job.queued_at, 0)
                ELSE coalesce(job.started_at, now) END AS started_at
    FROM clock, ROWS FROM (
        json_to_recordset($1::json) AS (id text, owner text, fence bigint, result text, ran bigint, ago bigint)
    ) WITH ORDINALITY AS outcome (id, owner, fence, result, ran, ago, place)
    CROSS JOIN LATERAL (
        SELECT seq, id, queue, task, state, owner, fence, queued_at, started_at FROM {schema}.packhorse_job
        WHERE id = outcome.id AND (owner = outcome.owner) IS TRUE AND fence = outcome.fence
          AND ($3::text IS NULL OR (SELECT EXISTS (SELECT 1 FROM {schema}.packhorse_worker WHERE id = $3)))
        FOR UPDATE
    ) AS job
),
completed AS (
    UPDATE {schema}.packhorse_job AS job
    SET state = 'completed', owner = NULL, last_owner = held.owner, started_at = held.started_at,
        ran_until = held.started_at + nullif(greatest(held.ran, 0), 0), finished_at = now, updated_at = now,
        attempts = attempts + (held.state = 'reserved')::integer, result = held.result,
        reason = NULL, error = NULL, cause = NULL, expire_at = NULL
    FROM held WHERE job.seq = ANY (ARRAY[held.seq])
),
told AS (
    INSERT INTO {schema}.packhorse_event (at, kind, subject, job_id, queue, state, owner, fence, data)
    SELECT CASE step WHEN 1 THEN started_at ELSE now END, CASE step WHEN 1 THEN 'started' ELSE 'completed' END, 'job',
           id, queue, CASE step WHEN 1 THEN 'running' ELSE 'completed' END, owner, fence,
           CASE step WHEN 2 THEN '{"ran":' || ran || '}' END
    FROM held, (VALUES (1), (2)) AS fact (step) WHERE step = 2 OR state = 'reserved' ORDER BY place, step
),
numbers AS MATERIALIZED (
    SELECT queue, task, state, count(*) AS number, now - now % 60000000 AS minute,
           sum(greatest(ran, 0))::bigint AS ran, coalesce(sum(greatest(started_at - queued_at, 0)), 0)::bigint AS waited
    FROM held GROUP BY queue, task, state, now
),
counted AS (
    INSERT INTO {schema}.packhorse_delta (level, at, queue, task, counted, amount)
    SELECT level, at, queue, task, what, amount FROM numbers, LATERAL (VALUES
        ('tally', 0, state, -number), ('tally', 0, 'completed', number), ('minute', minute, 'completed', number),
        ('minute', minute, 'ran', numbers.ran), ('minute', minute, 'waited', waited)
    ) AS fact (level, at, what, amount)
    UNION ALL
    SELECT 'minute', minute, queue, task, kind || ({steps})[1 + step], number FROM (
        SELECT queue, task, now - now % 60000000 AS minute, kind, width_bucket(length - 1, {limits}) AS step,
               count(*) AS number
        FROM held, LATERAL (VALUES ('run', ran), ('wait', coalesce(started_at - queued_at, 0))) AS time (kind, length)
        GROUP BY queue, task, now, kind, step
    ) AS stepped
    RETURNING 1
)
SELECT id, (SELECT count(*) FROM counted) FROM held

-- name: worker_exists
SELECT 1 FROM {schema}.packhorse_worker WHERE id = $1

-- name: lines_of_rank
-- The queues that have a queued job of this rank: hops from name to name along the index, never over the jobs.
WITH RECURSIVE line (queue) AS (
    SELECT (SELECT queue FROM {schema}.packhorse_job WHERE state = 'queued' AND queue > $2 ORDER BY queue LIMIT 1)
    UNION ALL
    SELECT (
        SELECT job.queue FROM {schema}.packhorse_job AS job
        WHERE state = 'queued' AND job.queue > line.queue ORDER BY job.queue LIMIT 1
    )
    FROM line WHERE line.queue IS NOT NULL
)
SELECT queue FROM line
WHERE queue IS NOT NULL AND ( -- not EXISTS, which the server may turn into a join over all jobs of the rank
    SELECT true FROM {schema}.packhorse_job AS job
    WHERE state = 'queued' AND job.queue = line.queue AND rank = $1 LIMIT 1
)
LIMIT $3

-- name: put_log_line
INSERT INTO {schema}.packhorse_log_line (job_id, at, attempt, kind, message) VALUES ($1, $2, $3, $4, $5)

-- name: last_line_above
-- The latest line that is too many, if a job may have so many.
SELECT id FROM {schema}.packhorse_log_line WHERE job_id BETWEEN $1 AND $1
ORDER BY job_id DESC, id DESC LIMIT 1 OFFSET $2

-- name: lines_to_drop
-- Those up to that one, and the next, which will say how many are gone. The text only of those that say so already.
SELECT CASE WHEN message LIKE '… % dropped …' THEN message ELSE '' END FROM {schema}.packhorse_log_line
WHERE job_id BETWEEN $1 AND $1 AND id <= coalesce((
    SELECT id FROM {schema}.packhorse_log_line WHERE job_id BETWEEN $1 AND $1 AND id > $2 ORDER BY job_id, id LIMIT 1
), $2)

-- name: drop_lines
DELETE FROM {schema}.packhorse_log_line WHERE job_id >= $1 AND (job_id, id) <= ($1, $2)

-- name: say_dropped
UPDATE {schema}.packhorse_log_line SET message = $1, kind = 'log'
WHERE ctid = (
    SELECT ctid FROM {schema}.packhorse_log_line WHERE job_id BETWEEN $2 AND $2 ORDER BY job_id, id LIMIT 1
)
