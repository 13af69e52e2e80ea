-- name: set_pause
INSERT INTO {schema}.packhorse_queue (name, paused_at, paused_by, paused_why, paused_until, timed_at)
VALUES ($1, $2, $3, $4, $5, $2)
ON DUPLICATE KEY UPDATE
    paused_at = VALUES(paused_at), paused_by = VALUES(paused_by), paused_why = VALUES(paused_why),
    paused_until = VALUES(paused_until), timed_at = VALUES(timed_at)

-- name: lock_queues
SELECT name, paused_at, paused_by, paused_why, CASE WHEN timed_at = paused_at THEN paused_until END
FROM {schema}.packhorse_queue WHERE name IN ($1*) ORDER BY name FOR UPDATE
