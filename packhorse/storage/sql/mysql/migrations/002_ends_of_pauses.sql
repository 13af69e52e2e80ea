-- A pause may have an end. Programs that know nothing of it pause until somebody resumes.
ALTER TABLE {schema}.packhorse_queue
    ADD COLUMN paused_until bigint,
    ADD INDEX packhorse_queue_until (paused_until);
