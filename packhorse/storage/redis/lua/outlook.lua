-- flags: no-writes
-- What lies ahead for the foreman ARGV[3], whose crew are ARGV[5], …; ARGV[4] is the event behind which its orders lie.
-- Answers the time; 1 if one of the crew holds a job that should stop, if a job is in line, if there is an order; the mark
-- of a move; and when the next job is due, the next expires, the next slot comes and the next pause
-- ends, '' if none does.
local ENTRIES_AT_ONCE, PAUSED, LOWEST = 100, 8192, 12

local function has_stops()
  for i = 5, #ARGV do
    if call('EXISTS', P .. 'stop:' .. ARGV[i]) == 1 then return 1 end
  end
  return 0
end

-- What is said of a queue may be said in vain, so its lines are looked at.
local function has_line(queue, mask)
  for rank = 0, LOWEST do
    if math.floor(mask / 2 ^ rank) % 2 == 1 and call('EXISTS', P .. 'l:' .. rank .. ':' .. queue) == 1 then return true end
  end
  return false
end

local function has_lines()
  local open = call('HGETALL', P .. 'open')
  for i = 1, #open, 2 do
    local mask = tonumber(open[i + 1]) % PAUSED
    if mask > 0 and has_line(open[i], mask) then return 1 end
  end
  return 0
end

-- Among the first entries about foremen, each of which holds one event; when there are more, there may be one.
local function has_orders(foreman, after)
  local numbers = call('ZRANGEBYSCORE', P .. 'about:foreman', '(' .. after, '+inf', 'LIMIT', 0, ENTRIES_AT_ONCE)
  for _, number in ipairs(numbers) do
    local entry = call('XRANGE', P .. 'ev', number, number)[1]
    local event = entry and cmsgpack.unpack(entry[2][4])
    if event and event[3] == 'ordered' and event[5] == foreman then return 1 end
  end
  return #numbers == ENTRIES_AT_ONCE and 1 or 0
end

local function first_score(key) return call('ZRANGE', P .. key, 0, 0, 'WITHSCORES')[2] or '' end

-- A version that knew no slots may have written schedules without them: then somebody must look at all of these.
local function next_slot()
  if call('ZCARD', P .. 'slots') ~= call('HLEN', P .. 'schedules') then return '0' end
  local first = first_score('slots')
  return first == 'inf' and '' or first
end

-- An end counts for the pause that began when it says, and for no later one.
local function next_end()
  local ends, first = call('HGETALL', P .. 'pause_ends'), nil
  for i = 1, #ends, 2 do
    local began, ended = ends[i + 1]:match('^(%d+) (%d+)$')
    local pause = call('HGET', P .. 'queues', ends[i])
    if pause and pause:match('^%[(%d+),') == began then first = math.min(first or tonumber(ended), tonumber(ended)) end
  end
  return first and string.format('%.0f', first) or ''
end

return { at, has_stops(), has_lines(), has_orders(ARGV[3], ARGV[4]), call('GET', P .. 'move') or '',
  first_score('due'), first_score('expiring'), next_slot(), next_end() }
