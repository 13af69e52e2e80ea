-- name: get_pause
SELECT paused_at, paused_until FROM {schema}.packhorse_queue WHERE name = $1 FOR UPDATE

-- name: set_pause
INSERT INTO {schema}.packhorse_queue (name, paused_at, paused_by, paused_why, paused_until)
VALUES ($1, $2, $3, $4, $5)
ON DUPLICATE KEY UPDATE
    paused_at = VALUES(paused_at), paused_by = VALUES(paused_by), paused_why = VALUES(paused_why),
    paused_until = VALUES(paused_until)
