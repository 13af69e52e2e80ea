-- Which version of the user's code a failure was seen with. Programs that know nothing of it leave the columns as they are.
ALTER TABLE packhorse_failure ADD COLUMN first_version TEXT;
ALTER TABLE packhorse_failure ADD COLUMN last_version TEXT;
ALTER TABLE packhorse_failure ADD COLUMN silenced_version TEXT;
