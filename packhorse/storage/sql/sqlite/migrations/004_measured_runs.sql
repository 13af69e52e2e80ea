-- Until when the latest attempt of a job ran, as its worker measured it. Programs that know nothing of it leave the column
-- as it is: what is older than `started_at` is about an attempt before.
ALTER TABLE packhorse_job ADD COLUMN ran_until INTEGER;
