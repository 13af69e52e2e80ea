-- flags: no-writes
-- parts: head
-- All queues: names with their pauses, tallies, since when the oldest queued job of each queue waits, and ends of pauses.
-- The oldest is the first job of each rank, or, where that was not queued when it was created, one of the first few, as
-- many as `look_into` says (storage/records.py).
local open = call('HGETALL', P .. 'open')
local ids, lines = {}, {}
for i = 1, #open, 2 do
  local bits = tonumber(open[i + 1])
  for rank = 0, 12 do
    if bit.band(bits, bit.lshift(1, rank)) ~= 0 then
      local key = P .. 'l:' .. rank .. ':' .. open[i]
      local id = call('ZRANGE', key, 0, 0)[1]
      if id then ids[#ids + 1], lines[#lines + 1] = id, { queue = open[i], key = key } end
    end
  end
end
local oldest, unsure = {}, {}
local function waits_since(queue, since) oldest[queue] = math.min(oldest[queue] or since, since) end
for i, head in ipairs((texts_of('j:', ids))) do
  if head then
    local is_whole, _, _, _, _, _, since, _, _, _, _, _, created = pcall(read, HOT .. 'I8', head)
    if is_whole then waits_since(lines[i].queue, since) end
    if not is_whole or created ~= since then unsure[#unsure + 1] = lines[i] end -- it was created before
  end
end
local depth = math.min(100, math.floor(10000 / math.max(1, #unsure)))
if #unsure > 1000 then unsure = {} end
for _, line in ipairs(unsure) do
  for _, id in ipairs(call('ZRANGE', line.key, 1, depth - 1)) do
    local since = call('GETRANGE', P .. 'j:' .. id, 18, 25)
    if #since == 8 then waits_since(line.queue, read('>I8', since)) end
  end
end
local waits = {}
for queue, since in pairs(oldest) do
  waits[#waits + 1] = queue
  waits[#waits + 1] = string.format('%.0f', since)
end
return {call('HGETALL', P .. 'queues'), call('HGETALL', P .. 'tally'), waits, call('HGETALL', P .. 'pause_ends')}
