-- name: set_pause
INSERT INTO packhorse_queue (name, paused_at, paused_by, paused_why, paused_until, timed_at)
VALUES (?1, ?2, ?3, ?4, ?5, ?2)
ON CONFLICT (name) DO UPDATE
SET paused_at = excluded.paused_at, paused_by = excluded.paused_by, paused_why = excluded.paused_why,
    paused_until = excluded.paused_until, timed_at = excluded.timed_at

-- name: lock_queues
SELECT name, paused_at, paused_by, paused_why, CASE WHEN timed_at = paused_at THEN paused_until END
FROM packhorse_queue WHERE name IN (SELECT value FROM json_each(?))
