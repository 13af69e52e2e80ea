-- flags: allow-oom
-- One heartbeat for the owners ARGV[4], ARGV[6], …; behind each what it reports. ARGV[3] is how many jobs of each should
-- be told to stop, at most. Answers the time, who is not known, and for each job that should stop its seq, its owner, its
-- id and its head.
local unknown, stops = {}, {}
for i = 4, #ARGV, 2 do
  local owner = ARGV[i]
  if call('ZSCORE', P .. 'beats', owner) then
    call('ZADD', P .. 'beats', at, owner)
    call('HSET', P .. 'reports', owner, ARGV[i + 1])
  else
    unknown[#unknown + 1] = owner
  end
  local asked = call('ZRANGE', P .. 'stop:' .. owner, 0, tonumber(ARGV[3]) - 1, 'WITHSCORES')
  for n = 1, #asked, 2 do
    stops[#stops + 1] = {asked[n + 1], owner, asked[n], call('GET', P .. 'j:' .. asked[n])}
  end
end
return {at, unknown, stops}
