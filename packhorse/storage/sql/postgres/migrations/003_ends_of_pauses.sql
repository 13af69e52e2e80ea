-- A pause may have an end. Programs that know nothing of it pause until somebody resumes.
ALTER TABLE {schema}.packhorse_queue ADD COLUMN paused_until bigint;

CREATE INDEX packhorse_queue_until ON {schema}.packhorse_queue (paused_until) WHERE paused_until IS NOT NULL;
