-- flags: no-writes
-- Every client: records, and when each was last heard of.
return {call('HGETALL', P .. 'clients'), call('ZRANGE', P .. 'client_beats', 0, -1, 'WITHSCORES')}
