-- A pause may have an end.
ALTER TABLE packhorse_queue ADD COLUMN paused_until INTEGER;

CREATE INDEX packhorse_queue_until ON packhorse_queue (paused_until) WHERE paused_until IS NOT NULL;
