-- name: get_move
SELECT value FROM {schema}.packhorse_meta WHERE key = 'move'

-- name: now_and_move
SELECT {schema}.packhorse_now(), (SELECT value FROM {schema}.packhorse_meta WHERE key = 'move')

-- name: share_writing
-- Every transaction that writes begins with this; a call that is one statement locks the table of jobs instead.
SELECT pg_advisory_xact_lock_shared(hashtextextended('{schema} move', 5040))

-- name: stop_writing
SELECT pg_advisory_xact_lock(hashtextextended('{schema} move', 5040))

-- name: writers
-- Processes of the server for whose transactions `stop_writing` waits, the oldest first: their names, and the seconds
-- for which they are open.
SELECT lock.pid, max(activity.application_name),
       max(extract(epoch FROM clock_timestamp() - activity.xact_start))::bigint AS seconds
FROM pg_locks AS lock LEFT JOIN pg_stat_activity AS activity ON activity.pid = lock.pid
WHERE lock.granted AND lock.pid <> pg_backend_pid()
  AND lock.database = (SELECT oid FROM pg_database WHERE datname = current_database())
  AND CASE lock.locktype
      WHEN 'advisory' THEN lock.objsubid = 1
          AND (lock.classid::bigint << 32 | lock.objid::bigint) = hashtextextended('{schema} move', 5040)
      WHEN 'relation' THEN lock.relation = '{schema}.packhorse_job'::regclass
          AND lock.mode NOT IN ('AccessShareLock', 'RowShareLock')
      END
GROUP BY lock.pid ORDER BY seconds DESC NULLS LAST LIMIT 5

-- name: raise_seq
SELECT setval(pg_get_serial_sequence('{schema}.packhorse_job', 'seq'),
              greatest($1, (SELECT max(seq) FROM {schema}.packhorse_job)))

-- name: raise_event_id
SELECT setval(pg_get_serial_sequence('{schema}.packhorse_event', 'id'),
              greatest($1, (SELECT max(id) FROM {schema}.packhorse_event)))

-- name: raise_line_id
SELECT setval(pg_get_serial_sequence('{schema}.packhorse_log_line', 'id'),
              greatest($1, (SELECT max(id) FROM {schema}.packhorse_log_line)))
