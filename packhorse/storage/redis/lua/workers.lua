-- flags: no-writes
-- Everybody who works: records, reports, and when each beat last.
return {call('HGETALL', P .. 'workers'), call('HGETALL', P .. 'reports'), call('ZRANGE', P .. 'beats', 0, -1, 'WITHSCORES')}
