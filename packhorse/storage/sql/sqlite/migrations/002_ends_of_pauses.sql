-- A pause may have an end. Programs that know nothing of it pause until somebody resumes, and leave both columns as they
-- are: the end belongs to the pause that began at `timed_at`, and to no other.
ALTER TABLE packhorse_queue ADD COLUMN paused_until INTEGER;
ALTER TABLE packhorse_queue ADD COLUMN timed_at INTEGER;

CREATE INDEX packhorse_queue_until ON packhorse_queue (paused_until) WHERE paused_until IS NOT NULL;
