-- flags: no-writes
-- The held jobs of the owners ARGV[4], … that should stop, at most ARGV[3] of each: seq, owner, id and head.
local stops = {}
for i = 4, #ARGV do
  local found = call('ZRANGE', P .. 'stop:' .. ARGV[i], 0, tonumber(ARGV[3]) - 1, 'WITHSCORES')
  for n = 1, #found, 2 do
    stops[#stops + 1] = {found[n + 1], ARGV[i], found[n], call('GET', P .. 'j:' .. found[n])}
  end
end
return stops
