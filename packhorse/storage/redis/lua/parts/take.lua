-- take(first) -> reply: the next waiting jobs for one worker. ARGV from `first` on: owner, limit, '1' if what is due was
-- seen to already, the pass of the queue served last, number of queues, and for each, sorted by name, its name, weight and
-- pass (see `turns.py`). Answers {is_due, due_in, turns, jobs}. is_due is 1 when jobs must be promoted or expired first;
-- then nothing is taken. The turns are a list for each rank: the number of a queue, how many were taken of it, and so on.
-- The jobs are id, head, body, one after the other. Needs the parts head, events, counts.
local FORCED, LOWEST, PAUSED, LINES_AT_ONCE = 1, 12, 8192, 32

local function first_score(key) return call('ZRANGE', P .. key, 0, 0, 'WITHSCORES')[2] end

local function is_over(score) return score and tonumber(score) <= now end

-- The queues that were asked for and may have jobs in line, each with the ranks of these.
local function queues_at(first, number)
  local queues, names = {}, {}
  for i = 1, number do names[i] = ARGV[first + 3 * i - 3] end
  for from = 1, number, AT_ONCE do
    for i, mask in ipairs(call('HMGET', P .. 'open', unpack(names, from, math.min(from + AT_ONCE - 1, number)))) do
      mask = tonumber(mask or 0)
      if mask % PAUSED > 0 then
        local index = from + i - 1
        local weight, pass = ARGV[first + 3 * index - 2], ARGV[first + 3 * index - 1]
        queues[#queues + 1] = { name = names[index], index = index, weight = tonumber(weight), pass = tonumber(pass),
          mask = mask, was = mask }
      end
    end
  end
  return queues
end

-- The lines of this rank that may have jobs.
local function lines_of(queues, rank)
  local lines, flag = {}, 2 ^ rank
  for _, queue in ipairs(queues) do
    if math.floor(queue.mask / flag) % 2 == 1 and (rank == FORCED or queue.mask < PAUSED) then
      lines[#lines + 1] = { queue = queue, key = P .. 'l:' .. rank .. ':' .. queue.name, flag = flag, taken = 0,
        pass = queue.pass }
    end
  end
  return lines
end

-- Those of them, from `first` on, that have jobs.
local function full_lines(lines, first)
  local full = {}
  for i = first, math.min(first + LINES_AT_ONCE - 1, #lines) do
    local line = lines[i]
    line.length = call('ZCARD', line.key)
    if line.length > 0 then full[#full + 1] = line else line.queue.mask = line.queue.mask - line.flag end
  end
  return full
end

local function goes_before(a, b) return a.pass < b.pass or (a.pass == b.pass and a.queue.index < b.queue.index) end

-- The first of a heap has grown, or another was put there: it finds its place.
local function sink(heap, size)
  local one, at_place = heap[1], 1
  while 2 * at_place <= size do
    local child = 2 * at_place
    if child < size and goes_before(heap[child + 1], heap[child]) then child = child + 1 end
    if not goes_before(heap[child], one) then break end
    heap[at_place], at_place = heap[child], child
  end
  heap[at_place] = one
end

-- How many to take from each line, by turns: as `Turns.share`, where queues are numbered in the order of their names.
local function share(lines, limit, present)
  local heap, size = {}, #lines
  for i, line in ipairs(lines) do
    line.pass = math.max(line.queue.pass, present)
    heap[i] = line
  end
  table.sort(heap, goes_before)
  while size > 0 and limit > 0 do
    local line = heap[1]
    limit, present, line.taken = limit - 1, line.pass, line.taken + 1
    line.pass = line.pass + 1 / line.queue.weight
    line.queue.pass = line.pass
    if line.taken == line.length then
      heap[1], heap[size] = heap[size], nil
      size = size - 1
    end
    if size > 1 then sink(heap, size) end
  end
  return present
end

-- The only line of a rank: up to the limit.
local function take_alone(line, limit, present)
  line.found = call('ZRANGE', line.key, 0, limit - 1, 'WITHSCORES')
  line.taken = #line.found / 2
  local queue = line.queue
  if line.taken < limit then queue.mask = queue.mask - line.flag end
  if line.taken == 0 then return present end
  local start = math.max(queue.pass, present)
  queue.pass = start + line.taken / queue.weight
  return start + (line.taken - 1) / queue.weight
end

-- Notes what these lines give. Answers how many jobs that is, and the turns.
local function note(lines, chosen)
  local number, told = 0, {}
  for _, line in ipairs(lines) do
    if line.length or line.taken > 0 then
      told[#told + 1] = line.queue.index
      told[#told + 1] = line.taken
    end
    if line.taken > 0 then
      number = number + line.taken
      line.found = line.found or call('ZRANGE', line.key, 0, line.taken - 1, 'WITHSCORES')
      if line.taken == line.length then line.queue.mask = line.queue.mask - line.flag end
      chosen[#chosen + 1] = line
    end
  end
  return number, told
end

-- Chooses; writes nothing. Answers the lines that give jobs, and the turns. Of very many lines those go first whose turn
-- is nearest, and give more than one job each: a job alone costs three times as much as one among others of its queue.
local function choose(queues, limit, present)
  local chosen, turns = {}, {}
  for rank = 0, LOWEST do
    if limit <= 0 then break end
    local lines = lines_of(queues, rank)
    if #lines > LINES_AT_ONCE then table.sort(lines, goes_before) end
    local first = 1
    while limit > 0 and first <= #lines do
      local some = lines
      if #lines == 1 then -- its length need not be known
        present = take_alone(lines[1], limit, present)
      else
        some = full_lines(lines, first)
        present = share(some, limit, present)
      end
      local number, told = note(some, chosen)
      limit, first = limit - number, first + LINES_AT_ONCE
      if #told > 0 then turns[#turns + 1] = told end
    end
  end
  return chosen, turns
end

-- What a job that was in other hands, or has a time limit, needs besides: a change of its cold, and of its place among
-- the expiring, which is noted in `expiries`.
local function take_odd(rest, id, queued, last_owner, expiries)
  local seq, result, tail_at = read('>c8I4c0', rest)
  local tail = sub(rest, tail_at)
  local cold, entries_of = cold_of(tail)
  if last_owner ~= '' then cold.last_owner = last_owner end
  cold.progress, cold.progress_text, cold.checkin, cold.checkin_at = nil, nil, nil, nil
  if cold.total_timeout and cold.first_queued_at ~= false then
    cold.expire_at = (cold.first_queued_at or queued) + cold.total_timeout
    expiries[#expiries + 1] = { 'ZADD', P .. 'expiring', cold.expire_at, seq .. id }
  elseif cold.expire_at then
    cold.expire_at = nil
    expiries[#expiries + 1] = { 'ZREM', P .. 'expiring', seq .. id }
  end
  return write('>c8I4c0', seq, #result, result) .. with_cold(tail, cold, entries_of)
end

-- Gives the chosen jobs of a line to the owner: their new heads, and what is told and counted; writes nothing. `jobs`
-- collects the reply.
local function hand_over(line, owner, jobs)
  local ids, found = {}, line.found
  for i = 1, #found, 2 do ids[(i + 1) / 2] = found[i] end
  local heads, keys = texts_of('j:', ids)
  local bodies = texts_of('b:', ids)
  local held, put, expiries, places, middles = {}, {}, {}, {}, {}
  local told, fences, size, count, entry = {}, {}, #jobs, 0, nil
  local function tell_told()
    tell(at, #told, cmsgpack.pack({ #told, told, 'reserved', 'reserved', owner, line.queue.name, fences, false, false, false }))
    told, fences = {}, {}
  end
  for i = 1, #ids do
    local id, head, body = ids[i], heads[i], bodies[i]
    if head and body and sub(head, 1, 1) == 'q' then
      if #told == 0 then entry = next_entry() end
      count = count + 1
      local flags, fence, attempts = read('>BI4I4', head, 2)
      local last_owner, place, rest_at = read('>I2c0I2c0', head, 35)
      local rest = sub(head, rest_at)
      if flags % 2 == 1 or last_owner ~= '' then
        rest = take_odd(rest, id, read('>I8', head, 19), last_owner, expiries)
        flags = flags - flags % 2 + 1
      end
      local middle = middles[place]
      if not middle then
        middle = write('>I2c0I2c0', #owner, owner, #place, place)
        middles[place], places[place] = middle, 0
      end
      head = front('r', flags, fence + 1, attempts) .. sub(head, 19, 34) .. middle .. rest .. entry
      put[2 * count - 1], put[2 * count] = keys[i], head
      held[2 * count - 1], held[2 * count] = found[2 * i], id
      jobs[size + 1], jobs[size + 2], jobs[size + 3] = id, head, body
      size = size + 3
      places[place] = places[place] + 1
      told[#told + 1], fences[#fences + 1] = id, fence + 1
      if #told == EVENTS_AT_ONCE then tell_told() end
    end
  end
  if #told > 0 then tell_told() end
  line.held, line.put, line.expiries, line.places = held, put, expiries, places
end

local function take(first)
  if call('EXISTS', P .. 'move') == 1 then return { 0, false, {}, {} } end -- nothing is handed out meanwhile
  local owner, limit, is_seen, present, number = unpack(ARGV, first, first + 4)
  local next_due = first_score('due')
  next_due = next_due and tonumber(next_due)
  if is_seen == '' and ((next_due and next_due <= now) or is_over(first_score('expiring'))) then return { 1 } end
  local queues, jobs = queues_at(first + 5, tonumber(number)), {}
  local chosen, turns = choose(queues, tonumber(limit), tonumber(present))
  for _, line in ipairs(chosen) do hand_over(line, owner, jobs) end
  for _, line in ipairs(chosen) do
    call('ZREMRANGEBYRANK', line.key, 0, line.taken - 1)
    call_with('ZADD', P .. 'h:' .. owner, line.held)
    for _, command in ipairs(line.expiries) do call(unpack(command)) end
    call_with('MSET', nil, line.put)
    for place, taken in pairs(line.places) do
      tally('q' .. place, -taken)
      tally('r' .. place, taken)
    end
  end
  for _, queue in ipairs(queues) do
    if queue.mask ~= queue.was then call('HSET', P .. 'open', queue.name, queue.mask) end
  end
  if #jobs > 0 then call('SADD', P .. 'holders', owner) end
  return { 0, next_due and math.max(0, next_due - now) or false, turns, jobs }
end
