-- name: get_pause
SELECT paused_at FROM packhorse_queue WHERE name = ?

-- name: set_pause
INSERT INTO packhorse_queue (name, paused_at, paused_by, paused_why) VALUES (?, ?, ?, ?)
ON CONFLICT (name) DO UPDATE
SET paused_at = excluded.paused_at, paused_by = excluded.paused_by, paused_why = excluded.paused_why
