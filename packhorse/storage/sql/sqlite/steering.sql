-- name: get_pause
SELECT paused_at, CASE WHEN timed_at = paused_at THEN paused_until END FROM packhorse_queue WHERE name = ?

-- name: set_pause
INSERT INTO packhorse_queue (name, paused_at, paused_by, paused_why, paused_until, timed_at)
VALUES (?1, ?2, ?3, ?4, ?5, ?2)
ON CONFLICT (name) DO UPDATE
SET paused_at = excluded.paused_at, paused_by = excluded.paused_by, paused_why = excluded.paused_why,
    paused_until = excluded.paused_until, timed_at = excluded.timed_at
