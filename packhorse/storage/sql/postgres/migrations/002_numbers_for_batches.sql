-- A value of the sequence stands for itself and the 999 before it: those who enqueue many jobs ask once for the numbers
-- of a thousand, and do not ask for each. Programs that know nothing of it leave gaps between their jobs, and no more.
ALTER SEQUENCE {schema}.packhorse_job_seq_seq INCREMENT BY 1000 START WITH 1000;

-- Where no job was numbered yet, the first value has 999 before it, too: no number is less than 1.
SELECT setval('{schema}.packhorse_job_seq_seq', 1000, false) FROM {schema}.packhorse_job_seq_seq WHERE NOT is_called;
