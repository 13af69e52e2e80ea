-- Folds old buckets of the charts into coarser ones, at most ARGV[3]. Then ARGV has for each level: its name, the time up to
-- which it is old, the name of the coarser level or '' to delete it, and the width of its buckets. Returns how many.
if call('EXISTS', P .. 'move') == 1 then return 0 end
local most, folded = tonumber(ARGV[3]), 0
for i = 4, #ARGV, 4 do
  local fine, coarse, width = P .. 'm:' .. ARGV[i], P .. 'm:' .. ARGV[i + 2], tonumber(ARGV[i + 3])
  for _, start in ipairs(call('ZRANGEBYSCORE', fine, '-inf', ARGV[i + 1], 'LIMIT', 0, most - folded)) do
    if ARGV[i + 2] ~= '' then
      local into = string.format('%.0f', tonumber(start) - tonumber(start) % width)
      local counts = call('HGETALL', fine .. ':' .. start)
      for n = 1, #counts, 2 do call('HINCRBY', coarse .. ':' .. into, counts[n], counts[n + 1]) end
      call('ZADD', coarse, into, into)
    end
    call('DEL', fine .. ':' .. start)
    call('ZREM', fine, start)
    folded = folded + 1
  end
end
return folded
