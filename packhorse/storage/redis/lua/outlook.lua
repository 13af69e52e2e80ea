-- flags: no-writes
-- What a foreman has to do. ARGV: 3 the foreman, 4 the event after which its orders are, 5 … its workers.
-- Returns the time; 1 or 0 for: a worker of these has a job that should stop, a job is queued, there is an order, any worker
-- holds a job; the mark of a move; when the next job is due, the next expires, the next tick is due and the next pause ends,
-- '' for none; the event up to which orders were searched; and the order of queues.
local ENTRIES_AT_ONCE, PAUSED, LOWEST = 100, 8192, 12

local function has_stops()
  for i = 5, #ARGV do
    if call('EXISTS', P .. 'stop:' .. ARGV[i]) == 1 then return 1 end
  end
  return 0
end

-- The mask may name lines that are empty by now, so check them.
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

-- Searches the next entries about foremen, each of which has one event, and returns how far it came. Ids of events rise, so
-- the next call continues from there; or from the newest, on a server that has lost its latest events.
local function has_orders(foreman, after)
  local newest = call('ZRANGE', P .. 'about:foreman', -1, -1)[1] or '0'
  if tonumber(newest) < tonumber(after) then return 0, newest end
  local found, last = 0, after
  for _, number in ipairs(call('ZRANGEBYSCORE', P .. 'about:foreman', '(' .. after, '+inf', 'LIMIT', 0, ENTRIES_AT_ONCE)) do
    local entry = call('XRANGE', P .. 'ev', number, number)[1]
    local is_whole, event = pcall(cmsgpack.unpack, entry and entry[2][4] or '')
    if is_whole and type(event) == 'table' and event[3] == 'ordered' and event[5] == foreman then found = 1 end
    last = number
  end
  return found, last
end

local function has_held()
  for _, owner in ipairs(call('SMEMBERS', P .. 'holders')) do
    if call('EXISTS', P .. 'h:' .. owner) == 1 then return 1 end
  end
  return 0
end

local function first_score(key) return call('ZRANGE', P .. key, 0, 0, 'WITHSCORES')[2] or '' end

-- An older version may have written schedules without slots: then all of them have to be examined.
local function next_slot()
  if call('ZCARD', P .. 'slots') ~= call('HLEN', P .. 'schedules') then return '0' end
  local first = first_score('slots')
  return first == 'inf' and '' or first
end

-- An end belongs to the pause that began at its time, not to a later one.
local function next_end()
  local ends, first = call('HGETALL', P .. 'pause_ends'), nil
  for i = 1, #ends, 2 do
    local began, ended = ends[i + 1]:match('^(%d+) (%d+)$')
    local pause = call('HGET', P .. 'queues', ends[i])
    if pause and pause:match('^%[(%d+),') == began then first = math.min(first or tonumber(ended), tonumber(ended)) end
  end
  return first and string.format('%.0f', first) or ''
end

local ordered, looked_to = has_orders(ARGV[3], ARGV[4])
return { at, has_stops(), has_lines(), ordered, has_held(), call('GET', P .. 'move') or '',
  first_score('due'), first_score('expiring'), next_slot(), next_end(), looked_to,
  call('GET', P .. 'order') or '' }
