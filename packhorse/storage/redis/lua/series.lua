-- flags: no-writes
-- Buckets of the charts that begin at ARGV[3] or later, of the levels ARGV[6], …: after the first ARGV[4], at most ARGV[5].
-- Returns for each when it begins, and its fields and amounts in turn.
local skip, left = tonumber(ARGV[4]), tonumber(ARGV[5])
local found = {}
for i = 6, #ARGV do
  local number = call('ZCOUNT', P .. 'm:' .. ARGV[i], ARGV[3], '+inf')
  if skip >= number then
    skip = skip - number
  elseif left > 0 then
    local key = P .. 'm:' .. ARGV[i]
    for _, start in ipairs(call('ZRANGEBYSCORE', key, ARGV[3], '+inf', 'LIMIT', skip, left)) do
      found[#found + 1] = {start, call('HGETALL', key .. ':' .. start)}
      left = left - 1
    end
    skip = 0
  end
end
return found
