-- flags: no-writes
-- Lines of the log of job ARGV[3], after line ARGV[4], at most ARGV[5].
local key, after, most = P .. 'log:' .. ARGV[3], tonumber(ARGV[4]), tonumber(ARGV[5])
local low, high = 0, call('LLEN', key)
while after > 0 and low < high do -- ids rise: search by halves
  local middle = math.floor((low + high) / 2)
  if cmsgpack.unpack(call('LINDEX', key, middle))[1] <= after then low = middle + 1 else high = middle end
end
return call('LRANGE', key, low, low + most - 1)
