-- Which version of the user's code a failure was seen with. Programs that know nothing of it leave the columns as they are.
ALTER TABLE {schema}.packhorse_failure
    ADD COLUMN first_version text, ADD COLUMN last_version text, ADD COLUMN silenced_version text;
