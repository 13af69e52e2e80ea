-- flags: no-writes
-- All workers and foremen: records, reports, and their last heartbeats.
return {call('HGETALL', P .. 'workers'), call('HGETALL', P .. 'reports'), call('ZRANGE', P .. 'beats', 0, -1, 'WITHSCORES')}
