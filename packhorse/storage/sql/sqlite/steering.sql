-- name: get_pause
SELECT paused_at, paused_until FROM packhorse_queue WHERE name = ?

-- name: set_pause
INSERT INTO packhorse_queue (name, paused_at, paused_by, paused_why, paused_until)
VALUES (?, ?, ?, ?, ?)
ON CONFLICT (name) DO UPDATE
SET paused_at = excluded.paused_at, paused_by = excluded.paused_by, paused_why = excluded.paused_why,
    paused_until = excluded.paused_until
