-- flags: no-writes
-- Walks along a list of jobs and returns those that fit. ARGV[3] is the packed query of lists.py:
--   walk     'line', 'due', 'finished' or 'newest'; after: the two numbers of the place after which it begins
--   sets     the sorted sets to merge; without them 'line' takes the open lines and 'newest' all queues, or, with
--            `held`, all held jobs. For a count, the sets may be walked one after the other: then walk is 'each'
--   most     how many fitting jobs to return; looks: how many jobs to examine; counts: return only the number
--   part     the id begins or ends with this; begins: it begins with this
--   oldest   the walk ends after a job created before this; too_young: it begins after those created since this
--   the rest conditions; a job must meet all of them
-- Returns whether the list has ended, how many were examined, how many fit, the place of the last one examined (two numbers
-- as text), then id, head and body of each that fits.
local query = cmsgpack.unpack(ARGV[3])
local find, lower, sub, byte = string.find, string.lower, string.sub, string.byte

-- --- the walk -------------------------------------------------------------------------------------------------------

local AT_ONCE, MANY = 100, 5000
local ENOUGH = 4000000 -- bytes of bodies; more would block the server too long
local falls = query.walk == 'finished' or query.walk == 'newest' or query.walk == 'each'
local timed = query.walk == 'finished' or query.walk == 'due'
local grouped = query.walk == 'line' or query.walk == 'each'
local command = falls and 'ZREVRANGE' or 'ZRANGE'
local after = query.after
-- Groups of sets, such as the lines of each rank: the next group is merged after the end of the one before.
local groups, group, last_group = {}, 0, 12

local function text(number) return string.format('%.0f', number) end

-- How many members of a set are at or before the place where the walk begins.
local function passed(key)
  if not after then return 0 end
  if grouped then
    if group > after[1] then return 0 end
    if falls then return call('ZCOUNT', key, text(-after[2]), '+inf') end
    return call('ZCOUNT', key, '-inf', text(after[2]))
  elseif query.walk == 'newest' then
    return call('ZCOUNT', key, text(-after[1]), '+inf')
  end
  -- Many jobs may have the same time. Their marks sort by seq: search by halves.
  local time, seq = text(math.abs(after[1])), math.abs(after[2])
  local low = falls and call('ZCOUNT', key, '(' .. time, '+inf') or call('ZCOUNT', key, '-inf', '(' .. time)
  local high = low + call('ZCOUNT', key, time, time)
  while low < high do
    local middle = math.floor((low + high) / 2)
    local its = struct.unpack('>I8', call(command, key, middle, middle)[1])
    if (falls and its >= seq) or (not falls and its <= seq) then low = middle + 1 else high = middle end
  end
  return low
end

-- Put the next member of a set into its fields `p`, `s` (the place) and `id`. False: there is none.
local function advance(set)
  if set.i > #set.list then
    set.list, set.i = call(command, set.key, set.from, set.from + set.step - 1, 'WITHSCORES'), 1
    set.from, set.step = set.from + set.step, math.min(2 * set.step, AT_ONCE)
    if #set.list == 0 then return false end
  end
  local member, score = set.list[set.i], tonumber(set.list[set.i + 1])
  set.i = set.i + 2
  if timed then
    set.p, set.s, set.id = score, struct.unpack('>I8', member), sub(member, 9)
    if falls then set.p, set.s = -set.p, -set.s end
  elseif grouped then
    set.p, set.s, set.id = group, falls and -score or score, member
  else
    set.p, set.s, set.id = -score, 0, member
  end
  return true
end

-- parts_of(head) -> place, created_at, priority, cold, rank. Read by position, so that a large result is not copied.
local function parts_of(head)
  local high, low = byte(head, 35, 36)
  local position = 37 + 256 * high + low -- after the owner
  high, low = byte(head, position, position + 1)
  local after_place = position + 2 + 256 * high + low
  local birth = after_place + 12 + struct.unpack('>I4', head, after_place + 8) -- after the result
  local created, priority, rank, size = struct.unpack('>I8BBI4', head, birth)
  return sub(head, position + 2, after_place - 1), created, priority, sub(head, birth + 14, birth + 13 + size), rank
end

-- Jobs are numbered in the order of arrival: after one as young as `too_young` (with a margin for clocks that were set
-- back), all are too young. Search the largest set by halves for the place where these begin.
local function skip_the_young(keys)
  if not query.too_young or after or query.walk ~= 'newest' then return end
  local largest, high = nil, 0
  for _, key in ipairs(keys) do
    local size = call('ZCARD', key)
    if size > high then largest, high = key, size end
  end
  local low, seq = 0, nil
  while high - low > AT_ONCE do
    local middle = math.floor((low + high) / 2)
    local id, score = unpack(call('ZREVRANGE', largest, middle, middle, 'WITHSCORES'))
    local head = call('GET', P .. 'j:' .. id)
    local is_whole, _, created = pcall(parts_of, head)
    if not is_whole then break end
    if created >= query.too_young then low, seq = middle, tonumber(score) else high = middle end
  end
  if seq then after = {-seq, 0} end
end

-- A heap merges the sets: the one with the next place comes first.
local heap = {}

local function sink(i)
  local set, child = heap[i], 2 * i
  local p, s = set.p, set.s
  while true do
    local next, other = heap[child], heap[child + 1]
    if not next then break end
    if other and (other.p < next.p or (other.p == next.p and other.s < next.s)) then
      next, child = other, child + 1
    end
    if p < next.p or (p == next.p and s <= next.s) then break end
    heap[i] = next
    i, child = child, 2 * child
  end
  heap[i] = set
end

local function merge(keys)
  query.looks = math.max(query.looks, math.min(#keys, MANY)) -- many sets take longer to begin with than to continue
  local step = math.max(2, math.min(AT_ONCE, math.ceil(2 * query.most / math.max(#keys, 1))))
  for _, key in ipairs(keys) do
    local set = {key = key, list = {}, i = 1, from = passed(key), step = step}
    if advance(set) then heap[#heap + 1] = set end
  end
  for i = math.floor(#heap / 2), 1, -1 do sink(i) end
end

local function with(prefix, names)
  local keys = {}
  for i, name in ipairs(names) do keys[i] = P .. prefix .. name end
  return keys
end

local function is_one_of(name, wanted)
  if not wanted then return true end
  for _, one in ipairs(wanted) do
    if one == name then return true end
    if byte(one, -1) == 42 and sub(name, 1, #one - 1) == sub(one, 1, -2) then return true end
  end
  return false
end

local function note_lines(queue, bits)
  if not is_one_of(queue, query.queues) then return end
  for rank = 0, 12 do
    if bit.band(bits, bit.lshift(1, rank)) ~= 0 and (not query.rank or rank == query.rank) then
      groups[rank] = groups[rank] or {}
      table.insert(groups[rank], P .. 'l:' .. rank .. ':' .. queue)
    end
  end
end

local function next_group()
  while group < last_group and #heap == 0 do
    group = group + 1
    if groups[group] then merge(groups[group]) end
  end
  return #heap > 0
end

if query.walk == 'line' then
  if query.line then
    note_lines(query.line, tonumber(call('HGET', P .. 'open', query.line) or 0))
  else
    local open = call('HGETALL', P .. 'open')
    for i = 1, #open, 2 do note_lines(open[i], tonumber(open[i + 1])) end
  end
elseif query.sets then
  skip_the_young(query.sets)
  merge(query.sets)
else
  local names = query.held and call('SMEMBERS', P .. 'holders') or call('HKEYS', P .. 'queues')
  if query.queues and not query.held then
    local all = names
    names = {}
    for _, name in ipairs(all) do if is_one_of(name, query.queues) then names[#names + 1] = name end end
  end
  local keys = with(query.held and 'h:' or 'q:', names)
  if grouped then
    table.sort(keys)
    for i, key in ipairs(keys) do groups[i] = {key} end
    last_group = #keys
  else
    skip_the_young(keys)
    merge(keys)
  end
end
if grouped then group = (after and math.max(0, after[1]) or 0) - 1 end

-- The next jobs of the list: their ids, and the two numbers of their places.
local function walk_on(number)
  local ids, ps, ss = {}, {}, {}
  for n = 1, number do
    if #heap == 0 and not (grouped and next_group()) then break end
    local set = heap[1]
    ids[n], ps[n], ss[n] = set.id, set.p, set.s
    if not advance(set) then
      heap[1] = heap[#heap]
      heap[#heap] = nil
    end
    if #heap > 1 then sink(1) end
  end
  return ids, ps, ss
end

-- --- the conditions -------------------------------------------------------------------------------------------------

local needs_cold = query.halted ~= nil or query.cause or query.error or query.min_took or query.max_took
local needs_head = query.queue or query.task or query.owner or query.min_priority or query.max_priority
  or query.created_from or query.created_to or query.rank or query.queues or query.tasks or query.min_attempts
  or query.max_attempts or query.min_waited or query.max_waited or needs_cold
local needs_body = query.schedule or query.unique_key or query.texts or query.args

local function has(packed, wanted) return not wanted or find(packed, wanted, 1, true) end

local function mentions(part, text) return part and find(lower(part), text, 1, true) end

local function is_within(number, least, most)
  if not least and not most then return true end
  return number and (not least or math.max(number, 0) >= least) and (not most or number <= most)
end

local function queue_in(place)
  local colon = find(place, ':', 1, true)
  return sub(place, colon + 1, colon + tonumber(sub(place, 1, colon - 1)))
end

local function task_in(place)
  local colon = find(place, ':', 1, true)
  return sub(place, colon + 1 + tonumber(sub(place, 1, colon - 1)))
end

local function is_held_by(head, owner)
  local state = byte(head)
  return (state == 114 or state == 120) and sub(head, 35, 36 + #owner) == struct.pack('>H', #owner) .. owner
end

-- times_of(head, rare) -> how long the latest attempt ran, and how long it was queued before; nil: unknown.
local function times_of(head, rare)
  local state, took, waited = sub(head, 1, 1), nil, nil
  local updated, queued, started = struct.unpack('>I8I8I8', head, 11)
  if started > 0 and not find('qsr', state, 1, true) then
    local ended = updated
    if state == 'x' then
      ended = query.asked_at
    elseif rare.ran_until and rare.ran_until >= started then
      ended = rare.ran_until
    elseif rare.finished_at then
      ended = rare.finished_at
    end
    took = ended and ended - started
  end
  if queued > 0 then
    if state == 'q' then
      waited = query.asked_at and query.asked_at - queued
    elseif started >= queued then
      waited = started - queued
    end
  end
  return took, waited
end

-- JSON with its long numbers as text after '\1': as doubles, different ones would be equal.
local EXACT = 15
local A_LONG_ONE = string.rep('[%d.eE+-]', EXACT + 1)

local function as_text(number)
  if #number > EXACT and find(number, '^-?%d') then return '"\\u0001' .. number .. '"' end
end

local function with_long_numbers_as_text(args)
  if not find(args, A_LONG_ONE) then return args end
  local parts, place = {}, 1
  while true do
    local first = find(args, '"', place, true)
    parts[#parts + 1] = string.gsub(sub(args, place, (first or 0) - 1), '[%d.eE+-]+', as_text)
    if not first then return table.concat(parts) end
    local last = find(args, '["\\]', first + 1)
    while last and byte(args, last) == 92 do last = find(args, '["\\]', last + 2) end
    if not last then return args end
    parts[#parts + 1] = sub(args, first, last)
    place = last + 1
  end
end

-- Is the value there? In a list, any member counts.
local function is_there(value, wanted, place)
  if type(value) == 'table' and value[1] ~= nil then
    for _, each in ipairs(value) do if is_there(each, wanted, place) then return true end end
    return false
  end
  local key = wanted.path[place]
  if key then return type(value) == 'table' and value[key] ~= nil and is_there(value[key], wanted, place + 1) end
  if type(value) == 'string' then return value == wanted.value or value == wanted.long end
  if type(value) == 'number' then return value == wanted.number end
  if value == cjson.null then return wanted.value == 'null' end
  return type(value) == 'boolean' and tostring(value) == wanted.value
end

local function is_argued(args)
  if #args > query.longest_args then return false end
  local is_json, value = pcall(cjson.decode, with_long_numbers_as_text(args))
  if not is_json or type(value) ~= 'table' then return false end
  for _, wanted in ipairs(query.args) do if not is_there(value, wanted, 1) then return false end end
  return true
end

-- A text that is nowhere in a head or a body is in none of its fields: to check this first is much faster than to unpack.
local function fits_head(head)
  if not head then return false end
  if query.states and not find(query.states, sub(head, 1, 1), 1, true) then return false end
  if not needs_head then return true end
  if not (has(head, query.task) and has(head, query.cause) and has(head, query.queue)) then return false end
  if query.owner and not is_held_by(head, query.owner) then return false end
  if query.error and not mentions(head, query.error) then return false end
  if not is_within(struct.unpack('>I4', head, 7), query.min_attempts, query.max_attempts) then return false end
  local place, created, priority, cold, rank = parts_of(head)
  if query.rank and rank ~= query.rank then return false end
  if not is_within(priority, query.min_priority, query.max_priority) then return false end
  if query.created_from and created < query.created_from then return false end
  if query.created_to and created >= query.created_to then return false end
  if query.queue and sub(place, 1, #query.queue) ~= query.queue then return false end
  if query.task and task_in(place) ~= query.task then return false end
  if query.queues and not is_one_of(queue_in(place), query.queues) then return false end
  if query.tasks and not is_one_of(task_in(place), query.tasks) then return false end
  local rare = needs_cold and #cold > 0 and cmsgpack.unpack(cold) or {}
  local took, waited = times_of(head, rare)
  if not is_within(took, query.min_took, query.max_took) then return false end
  if not is_within(waited, query.min_waited, query.max_waited) then return false end
  if query.error and not mentions(rare.error, query.error) then return false end
  local is_halted = (rare.halts or 0) > 0 and rare.reason == "RUNNER_TIMEOUT"
  if query.halted ~= nil and is_halted ~= query.halted then return false end
  return not query.cause or rare.cause == query.cause
end

local function mentions_in_head(head, text)
  if not mentions(head, text) then return false end
  local place, _, _, cold = parts_of(head)
  return mentions(task_in(place), text) or (mentions(cold, text) and mentions(cmsgpack.unpack(cold).error, text))
end

local function fits_body(id, head, body)
  if not body or not (has(body, query.schedule) and has(body, query.unique_key)) then return false end
  local in_args = {}  -- texts that are in neither id, task nor error
  for _, text in ipairs(query.texts or {}) do
    if not mentions(id, text) and not mentions_in_head(head, text) then
      if not mentions(body, text) then return false end
      in_args[#in_args + 1] = text
    end
  end
  if #in_args == 0 and not query.schedule and not query.unique_key and not query.args then return true end
  local fields = cmsgpack.unpack(body)
  if query.schedule and fields[query.schedule_at] ~= query.schedule then return false end
  if query.unique_key and fields[query.unique_key_at] ~= query.unique_key then return false end
  if query.args and not is_argued(fields[query.args_at]) then return false end
  for _, text in ipairs(in_args) do
    if not mentions(fields[query.args_at], text) then return false end
  end
  return true
end

-- --- the search -----------------------------------------------------------------------------------------------------

local function get_all(prefix, ids)
  if #ids == 0 then return {} end
  return call('MGET', unpack(with(prefix, ids)))
end

-- The ids that begin or end with the part, and their places among all.
local function named_so(ids)
  local part = query.part or query.begins
  if not part then return ids end
  local named, where = {}, {}
  for i, id in ipairs(ids) do
    if sub(id, 1, #part) == part or (query.part and sub(id, -#part) == part) then named[#named + 1], where[#where + 1] = id, i end
  end
  return named, where
end

local looked, fitting, last_p, last_s, weight, has_ended = 0, 0, 0, 0, 0, 0
local answer = {0, 0, 0, '0', '0'}

while fitting < query.most and looked < query.looks and weight < ENOUGH do
  local number = math.min(AT_ONCE, query.looks - looked)
  if needs_body then
    number = math.min(number, 25)
  elseif not needs_head and not query.states and not query.part and not query.begins then
    number = math.min(number, query.most - fitting)
  end
  local ids, ps, ss = walk_on(number)
  local named, where_named = named_so(ids)
  local heads_named, heads = get_all('j:', named), {}
  local chosen, where = {}, {}
  for n, id in ipairs(named) do
    local is_whole, fits = pcall(fits_head, heads_named[n])
    if is_whole and fits then
      local i = where_named and where_named[n] or n
      chosen[#chosen + 1], where[#where + 1], heads[i] = id, i, heads_named[n]
    end
  end
  local bodies = (needs_body or not query.counts) and get_all('b:', chosen) or {}
  local seen = #ids
  for n, id in ipairs(chosen) do
    local i, body = where[n], bodies[n]
    weight = weight + (body and #body or 0)
    local is_whole, fits = true, true
    if needs_body then is_whole, fits = pcall(fits_body, id, heads[i], body) end
    if is_whole and fits then
      fitting = fitting + 1
      if not query.counts then
        local size = #answer
        answer[size + 1], answer[size + 2], answer[size + 3] = id, heads[i], body
      end
      if fitting == query.most then
        seen = i
        break
      end
    end
  end
  looked = looked + seen
  if seen > 0 then last_p, last_s = ps[seen], ss[seen] end
  -- Jobs are numbered in the order of arrival: after one this old, all are too old.
  if query.oldest and seen == #ids and heads_named[#named] and named[#named] == ids[seen] then
    local is_whole, _, created = pcall(parts_of, heads_named[#named])
    if is_whole and created < query.oldest then
      has_ended = 1
      break
    end
  end
  if #ids < number and seen == #ids then
    has_ended = 1
    break
  end
end

answer[1], answer[2], answer[3], answer[4], answer[5] = has_ended, looked, fitting, text(last_p), text(last_s)
return answer
