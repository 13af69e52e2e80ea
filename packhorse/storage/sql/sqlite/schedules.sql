-- name: all_schedules
SELECT name, task, cron, tz, args, queue, options, missed, overlap, next_at, last_at, last_job_id,
       paused_at, paused_by, updated_at
FROM packhorse_schedule ORDER BY next_at, name

-- name: lock_schedules
SELECT name, task, cron, tz, args, queue, options, missed, overlap, next_at, last_at, last_job_id,
       paused_at, paused_by, updated_at
FROM packhorse_schedule WHERE name IN (SELECT value FROM json_each(?))

-- name: put_schedule
INSERT OR REPLACE INTO packhorse_schedule (
    name, task, cron, tz, args, queue, options, missed, overlap, next_at, last_at, last_job_id,
    paused_at, paused_by, updated_at
) VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)

-- name: delete_schedule
DELETE FROM packhorse_schedule WHERE name = ?

-- name: put_tick
INSERT INTO packhorse_tick (schedule, slot, outcome, at, job_id) VALUES (?, ?, ?, ?, ?)

-- name: latest_ticks
SELECT schedule, slot, outcome, at, job_id FROM packhorse_tick WHERE schedule = ? ORDER BY id DESC LIMIT ?
