-- flags: allow-oom
-- Events go. ARGV: how many deleted jobs may be forgotten besides, and the ids of the events, rising. An entry goes when all
-- of its events have gone; until then `holes` tells which.
if call('EXISTS', P .. 'move') == 1 then return 0 end
local floor = tonumber(call('GET', P .. 'floor') or 0)
for first = 4, #ARGV, 500 do
  local holes = {}
  for i = first, math.min(first + 499, #ARGV) do
    if tonumber(ARGV[i]) > floor then
      holes[#holes + 1] = ARGV[i]
      holes[#holes + 1] = ARGV[i]
    end
  end
  if #holes > 0 then call('ZADD', P .. 'holes', unpack(holes)) end
end

-- The floor rises over all holes that lie side by side above it.
local raised = floor
while true do
  local holes = call('ZRANGEBYSCORE', P .. 'holes', string.format('(%.0f', raised), '+inf', 'LIMIT', 0, 500)
  local before = raised
  for _, hole in ipairs(holes) do
    if tonumber(hole) ~= raised + 1 then break end
    raised = raised + 1
  end
  if raised == before or #holes < 500 then break end
end
if raised > floor then
  local text = string.format('%.0f', raised)
  call('SET', P .. 'floor', text)
  call('ZREMRANGEBYSCORE', P .. 'holes', '-inf', text)
  -- The entry that holds the next event stays, and so do all behind it.
  local holder = call('XREVRANGE', P .. 'ev', string.format('%.0f', raised + 1), '-', 'COUNT', 1)[1]
  if holder then call('XTRIM', P .. 'ev', 'MINID', holder[1]) end
  for _, subject in ipairs({ 'worker', 'foreman', 'client', 'queue', 'schedule' }) do
    call('ZREMRANGEBYSCORE', P .. 'about:' .. subject, '-inf', text)
  end
end
local gone = call('ZRANGEBYSCORE', P .. 'gone', '-inf', string.format('%.0f', raised), 'LIMIT', 0, ARGV[3])
for _, id in ipairs(gone) do
  -- An id may have been used again: what tells of its second life stays.
  local first = call('LINDEX', P .. 'g:' .. id, 0)
  while first and tonumber(first) <= raised do
    call('LPOP', P .. 'g:' .. id)
    first = call('LINDEX', P .. 'g:' .. id, 0)
  end
  call('ZREM', P .. 'gone', id)
end
return 1
