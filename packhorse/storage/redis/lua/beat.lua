-- flags: allow-oom
-- A heartbeat for the owners ARGV[4], ARGV[6], …, each followed by its report. Returns the time, the unknown owners, and
-- the seq, owner, id and head of jobs that should stop, at most ARGV[3] of each owner.
local unknown, stops = {}, {}
for i = 4, #ARGV, 2 do
  local owner = ARGV[i]
  if call('ZSCORE', P .. 'beats', owner) then
    call('ZADD', P .. 'beats', at, owner)
    call('HSET', P .. 'reports', owner, ARGV[i + 1])
  else
    unknown[#unknown + 1] = owner
  end
  local found = call('ZRANGE', P .. 'stop:' .. owner, 0, tonumber(ARGV[3]) - 1, 'WITHSCORES')
  for n = 1, #found, 2 do
    stops[#stops + 1] = {found[n + 1], owner, found[n], call('GET', P .. 'j:' .. found[n])}
  end
end
return {at, unknown, stops}
