-- name: get_move
SELECT value FROM {schema}.packhorse_meta WHERE key = 'move'

-- name: now_and_move
SELECT {schema}.packhorse_now(), (SELECT value FROM {schema}.packhorse_meta WHERE key = 'move')

-- name: share_writing
-- Every transaction that writes begins so; a call that is one statement has the table of jobs locked instead.
SELECT pg_advisory_xact_lock_shared(hashtextextended('{schema} move', 5040))

-- name: stop_writing
SELECT pg_advisory_xact_lock(hashtextextended('{schema} move', 5040))

-- name: raise_seq
SELECT setval(pg_get_serial_sequence('{schema}.packhorse_job', 'seq'),
              greatest($1, (SELECT max(seq) FROM {schema}.packhorse_job)))

-- name: raise_event_id
SELECT setval(pg_get_serial_sequence('{schema}.packhorse_event', 'id'),
              greatest($1, (SELECT max(id) FROM {schema}.packhorse_event)))

-- name: raise_line_id
SELECT setval(pg_get_serial_sequence('{schema}.packhorse_log_line', 'id'),
              greatest($1, (SELECT max(id) FROM {schema}.packhorse_log_line)))
