-- flags: allow-oom
-- Deletes ticks of ARGV[3] or earlier, among the oldest ARGV[4]; failures with a score of ARGV[5] or more (last seen as long
-- ago), at most ARGV[6]; and replaced calls of ARGV[3] or earlier, or the oldest if there are more than ARGV[7], at most
-- ARGV[4]. Returns the number of failures.
if call('EXISTS', P .. 'move') == 1 then return 0 end
local before, limit = tonumber(ARGV[3]), tonumber(ARGV[4])
if limit > 0 then
  for _, tick in ipairs(call('ZRANGE', P .. 'ticks', 0, limit - 1)) do
    local number, ticked_at, name = string.match(tick, '^(%d+):(%d+):(.*)$')
    if tonumber(ticked_at) <= before then
      call('ZREM', P .. 'ticks', tick)
      call('ZREMRANGEBYSCORE', P .. 'ticks:' .. name, number, number)
    end
  end
  local many = call('ZCARD', P .. 'replaced_at') - tonumber(ARGV[7])
  local twins = call('ZRANGE', P .. 'replaced_at', 0, limit - 1, 'WITHSCORES')
  for i = 1, #twins, 2 do
    if tonumber(twins[i + 1]) > before and i > 2 * many then break end
    call('HDEL', P .. 'replaced', twins[i])
    call('ZREM', P .. 'replaced_at', twins[i])
  end
end
local causes = call('ZRANGEBYSCORE', P .. 'failures', ARGV[5], '+inf', 'LIMIT', 0, ARGV[6])
for _, cause in ipairs(causes) do
  call('ZREM', P .. 'failures', cause)
  call('DEL', P .. 'failure:' .. cause)
end
return #causes
