-- name: all_schedules
SELECT name, task, cron, tz, args, queue, options, missed, overlap, next_at, last_at, last_job_id,
       paused_at, paused_by, updated_at
FROM {schema}.packhorse_schedule ORDER BY next_at, name

-- name: lock_schedules
SELECT name, task, cron, tz, args, queue, options, missed, overlap, next_at, last_at, last_job_id,
       paused_at, paused_by, updated_at
FROM {schema}.packhorse_schedule WHERE name IN ($1*) ORDER BY name FOR UPDATE

-- name: put_schedule
INSERT INTO {schema}.packhorse_schedule (
    name, task, cron, tz, args, queue, options, missed, overlap, next_at, last_at, last_job_id,
    paused_at, paused_by, updated_at
) VALUES ($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11, $12, $13, $14, $15)
ON DUPLICATE KEY UPDATE
    task = VALUES(task), cron = VALUES(cron), tz = VALUES(tz), args = VALUES(args), queue = VALUES(queue),
    options = VALUES(options), missed = VALUES(missed), overlap = VALUES(overlap), next_at = VALUES(next_at),
    last_at = VALUES(last_at), last_job_id = VALUES(last_job_id), paused_at = VALUES(paused_at),
    paused_by = VALUES(paused_by), updated_at = VALUES(updated_at)

-- name: delete_schedule
DELETE FROM {schema}.packhorse_schedule WHERE name = $1

-- name: put_tick
INSERT INTO {schema}.packhorse_tick (schedule, slot, outcome, at, job_id) VALUES ($1, $2, $3, $4, $5)

-- name: latest_ticks
SELECT schedule, slot, outcome, at, job_id FROM {schema}.packhorse_tick WHERE schedule = $1 ORDER BY id DESC LIMIT $2
