-- flags: allow-oom
-- Deletes events. ARGV: how many deleted jobs may be forgotten with them, the id up to which no event is left then, number
-- of subjects that have an index, their names, and the ids of the events, rising. An entry is deleted with its last event;
-- until then `holes` has the deleted ones.
if call('EXISTS', P .. 'move') == 1 then return 0 end
local floor = tonumber(call('GET', P .. 'floor') or 0)
local raised = math.max(floor, tonumber(ARGV[4]))
local behind = 5 + tonumber(ARGV[5])
for first = behind + 1, #ARGV, 500 do
  local holes = {}
  for i = first, math.min(first + 499, #ARGV) do
    if tonumber(ARGV[i]) > floor then
      holes[#holes + 1] = ARGV[i]
      holes[#holes + 1] = ARGV[i]
    end
  end
  if #holes > 0 then call('ZADD', P .. 'holes', unpack(holes)) end
end

if raised > floor then
  local text = string.format('%.0f', raised)
  call('SET', P .. 'floor', text)
  -- All events below are holes by now. The other ids never had events, and are not counted any more.
  local others = raised - floor - call('ZREMRANGEBYSCORE', P .. 'holes', '-inf', text)
  local unused = tonumber(call('GET', P .. 'unused') or 0) - others
  if unused <= 0 then
    call('DEL', P .. 'unused')
  elseif others > 0 then
    call('SET', P .. 'unused', string.format('%.0f', unused))
  end
  -- The entry with the next event stays, and all after it.
  local holder = call('XREVRANGE', P .. 'ev', string.format('%.0f', raised + 1), '-', 'COUNT', 1)[1]
  if holder then call('XTRIM', P .. 'ev', 'MINID', holder[1]) end
  for i = 6, behind do call('ZREMRANGEBYSCORE', P .. 'about:' .. ARGV[i], '-inf', text) end
end
local gone = call('ZRANGEBYSCORE', P .. 'gone', '-inf', string.format('%.0f', raised), 'LIMIT', 0, ARGV[3])
for _, id in ipairs(gone) do
  -- An id may have been used again: the entries of the new job stay.
  local first = call('LINDEX', P .. 'g:' .. id, 0)
  while first and tonumber(first) <= raised do
    call('LPOP', P .. 'g:' .. id)
    first = call('LINDEX', P .. 'g:' .. id, 0)
  end
  call('ZREM', P .. 'gone', id)
end
return 1
