-- flags: no-writes
-- All queues: the names with their pauses, the tallies, for each queue that has jobs in line since when the oldest of the
-- next ones, one for each rank, waits; and the ends of pauses.
local open = call('HGETALL', P .. 'open')
local ids, lines = {}, {}
for i = 1, #open, 2 do
  local bits = tonumber(open[i + 1])
  for rank = 0, 12 do
    if bit.band(bits, bit.lshift(1, rank)) ~= 0 then
      local id = call('ZRANGE', P .. 'l:' .. rank .. ':' .. open[i], 0, 0)[1]
      if id then ids[#ids + 1], lines[#lines + 1] = id, open[i] end
    end
  end
end
local oldest = {}
for i, id in ipairs(ids) do
  local since = struct.unpack('>I8', call('GETRANGE', P .. 'j:' .. id, 18, 25))
  local queue = lines[i]
  oldest[queue] = math.min(oldest[queue] or since, since)
end
local waits = {}
for queue, since in pairs(oldest) do
  waits[#waits + 1] = queue
  waits[#waits + 1] = string.format('%.0f', since)
end
return {call('HGETALL', P .. 'queues'), call('HGETALL', P .. 'tally'), waits, call('HGETALL', P .. 'pause_ends')}
