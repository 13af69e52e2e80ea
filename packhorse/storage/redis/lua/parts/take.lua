-- take(first) -> reply, texts: the next queued jobs for one worker. ARGV from `first` on: owner, limit, '1' if due and expired
-- jobs were handled before, the pass of the queue served last, number of queues, the weight and pass of each, packed (see
-- core/fair_share.py), and their names, sorted by name, or by pass if they are many. Returns {is_due, due_in, turns, jobs},
-- and the heads that `write_events` has to write. is_due is 1 if jobs must be promoted or expired first; then nothing is
-- taken. The turns are a list for each rank: name of a queue, number of jobs taken from it, and so on. The jobs are id,
-- head, body, in turn. Needs the parts head, events, counts.
local TAKEN = '>xBI4I4' .. string.rep('x', 24) .. 'I2c0I2c0' -- of a head: flags, fence, attempts, owner, place
local FORCED, LOWEST, PAUSED, LINES_AT_ONCE, MANY = 1, 12, 8192, 32, 100

local function first_score(key) return call('ZRANGE', P .. key, 0, 0, 'WITHSCORES')[2] end

local function is_over(score) return score and tonumber(score) <= now end

-- Which lines of these queues may have jobs: a mask, or false, for each. For very many queues the hash is read as a whole: a
-- small hash is searched from its beginning for each field.
local function masks_at(first, number)
  local masks, last = {}, first + number - 1
  if number > MANY and call('HLEN', P .. 'open') <= 4 * number then
    local reply, mask_of = call('HGETALL', P .. 'open'), {}
    for i = 1, #reply, 2 do mask_of[reply[i]] = reply[i + 1] end
    for i = 1, number do masks[i] = mask_of[ARGV[first + i - 1]] or false end
    return masks
  end
  for from = first, last, AT_ONCE do
    local reply = call('HMGET', P .. 'open', unpack(ARGV, from, math.min(from + AT_ONCE - 1, last)))
    for i = 1, #reply do masks[from - first + i] = reply[i] end
  end
  return masks
end

-- The ranks of a mask that jobs may be taken from.
local ranks_in = {}
local function ranks_of(text)
  local ranks, mask = ranks_in[text], tonumber(text)
  if ranks then return ranks end
  ranks = {}
  for rank = 0, LOWEST do
    if math.floor(mask / 2 ^ rank) % 2 == 1 and (rank == FORCED or mask < PAUSED) then ranks[#ranks + 1] = rank end
  end
  ranks_in[text] = ranks
  return ranks
end

-- queues_at(first, number) -> by_rank, queue_at, queues: the numbers of the queues that may have jobs of each rank, how to get
-- a queue by its number, and those that were got. Of very many queues most are not examined.
local function queues_at(first, number)
  local shares, masks, by_rank, queues = ARGV[first], masks_at(first + 1, number), {}, {}
  for i = 1, number do
    if masks[i] then
      for _, rank in ipairs(ranks_of(masks[i])) do
        local numbers = by_rank[rank] or {}
        numbers[#numbers + 1] = i
        by_rank[rank] = numbers
      end
    end
  end
  local function queue_at(i)
    local queue = queues[i]
    if not queue then
      local weight, pass = read('>dd', shares, 16 * i - 15)
      local mask = tonumber(masks[i])
      queue = { name = ARGV[first + i], index = i, weight = weight, pass = pass, mask = mask, was = mask }
      queues[i] = queue
    end
    return queue
  end
  return by_rank, queue_at, queues
end

local function new_line(queue, rank)
  return { queue = queue, key = P .. 'l:' .. rank .. ':' .. queue.name, flag = 2 ^ rank, taken = 0 }
end

-- The lines of these queues, from `first` on, that have jobs.
local function full_lines(queue_at, numbers, rank, first)
  local full = {}
  for i = first, math.min(first + LINES_AT_ONCE - 1, #numbers) do
    local line = new_line(queue_at(numbers[i]), rank)
    line.length = call('ZCARD', line.key)
    if line.length > 0 then full[#full + 1] = line else line.queue.mask = line.queue.mask - line.flag end
  end
  return full
end

local function goes_before(a, b) return a.pass < b.pass or (a.pass == b.pass and a.queue.index < b.queue.index) end

-- Move the first of a heap to its place, after its value has grown.
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

-- Decide how many to take from each line, in turns, as `FairShare.share` does with the queues sorted by name.
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

-- Add the lines that give jobs to `chosen`. Returns the number of jobs, and the turns.
local function note(lines, chosen)
  local number, turn = 0, {}
  for _, line in ipairs(lines) do
    if line.length or line.taken > 0 then
      turn[#turn + 1] = line.queue.name
      turn[#turn + 1] = line.taken
    end
    if line.taken > 0 then
      number = number + line.taken
      line.found = line.found or call('ZRANGE', line.key, 0, line.taken - 1, 'WITHSCORES')
      if line.taken == line.length then line.queue.mask = line.queue.mask - line.flag end
      chosen[#chosen + 1] = line
    end
  end
  return number, turn
end

-- Choose; write nothing. Returns the lines that give jobs, and the turns. Of very many lines, those whose turn is nearest go
-- first and give several jobs each: a single job costs three times as much as one among others of its queue.
local function choose(by_rank, queue_at, limit, present)
  local chosen, turns = {}, {}
  for rank = 0, LOWEST do
    if limit <= 0 then break end
    local numbers, first = by_rank[rank] or {}, 1
    while limit > 0 and first <= #numbers do
      local some
      if #numbers == 1 then -- its length need not be known
        some = { new_line(queue_at(numbers[1]), rank) }
        present = take_alone(some[1], limit, present)
      else
        some = full_lines(queue_at, numbers, rank, first)
        present = share(some, limit, present)
      end
      local number, turn = note(some, chosen)
      limit, first = limit - number, first + LINES_AT_ONCE
      if #turn > 0 then turns[#turns + 1] = turn end
    end
  end
  return chosen, turns
end

-- A job that was held before, or has a time limit, needs a change of its cold, and of its place among the expiring jobs,
-- which `expiries` collects.
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

-- Read the jobs of these lines: their ids, and their heads followed by their bodies.
local function read_chosen(chosen)
  local ids, scores, queues, keys, count = {}, {}, {}, {}, 0
  for _, line in ipairs(chosen) do
    local found = line.found
    for i = 1, #found, 2 do
      count = count + 1
      ids[count], scores[count], queues[count] = found[i], found[i + 1], line.queue.name
    end
  end
  for i = 1, count do keys[i], keys[count + i] = P .. 'j:' .. ids[i], P .. 'b:' .. ids[i] end
  if count > 0 and not last_event then keys[2 * count + 1] = P .. 'n:event' end -- read in the same call
  local texts = texts_at(keys)
  if #keys > 2 * count then last_event = tonumber(texts[#keys] or 0) end
  return ids, scores, queues, keys, texts
end

-- Give the chosen jobs to the owner: returns the reply, the new heads, what the owner holds then, and the commands for
-- expiring jobs. Adds events and counts, but writes nothing.
local function hand_over(chosen, owner)
  local ids, scores, queues, keys, texts = read_chosen(chosen)
  local jobs, put, held, expiries, middles, places = {}, {}, {}, {}, {}, {}
  local size, count, group, fences, group_queues, one_queue, entry = 0, 0, {}, {}, {}, true, nil
  local function write_group()
    add_entry(at, #group, cmsgpack.pack({ #group, group, 'reserved', 'reserved', owner,
      one_queue and group_queues[1] or group_queues, fences, false, false, false }))
    group, fences, group_queues, one_queue = {}, {}, {}, true
  end
  for i = 1, #ids do
    local id, head, body = ids[i], texts[i], texts[#ids + i]
    local is_whole, flags, fence, attempts, last_owner, place, rest_at, rest
    if head and sub(head, 1, 1) == 'q' then -- a job that cannot be read leaves the line, and has no owner
      is_whole, flags, fence, attempts, last_owner, place, rest_at = pcall(read, TAKEN, head)
    end
    if is_whole then
      rest = sub(head, rest_at)
      if flags % 2 == 1 or last_owner ~= '' then
        is_whole, rest = pcall(take_odd, rest, id, read('>I8', head, 19), last_owner, expiries)
        flags = flags - flags % 2 + 1
      end
    end
    if is_whole then
      local n = #group + 1
      if n == 1 then entry = next_entry() end
      count = count + 1
      local middle = middles[place]
      if not middle then
        middle = write('>I2c0I2c0', #owner, owner, #place, place)
        middles[place], places[place] = middle, 0
      end
      head = front('r', flags, fence + 1, attempts) .. sub(head, 19, 34) .. middle .. rest .. entry
      put[2 * count - 1], put[2 * count] = keys[i], head
      held[2 * count - 1], held[2 * count] = scores[i], id
      jobs[size + 1], jobs[size + 2], jobs[size + 3] = id, head, body or '' -- without a body, the job is broken
      size = size + 3
      places[place] = places[place] + 1
      group[n], fences[n], group_queues[n] = id, fence + 1, queues[i]
      if group_queues[1] ~= queues[i] then one_queue = false end
      if n == EVENTS_AT_ONCE then write_group() end
    end
  end
  if #group > 0 then write_group() end
  for place, taken in pairs(places) do
    tally('q' .. place, -taken)
    tally('r' .. place, taken)
  end
  return jobs, put, held, expiries
end

local function take(first)
  local owner, limit, is_checked, present, number = unpack(ARGV, first, first + 4)
  local next_due
  if call('EXISTS', P .. 'move', P .. 'due', P .. 'expiring') > 0 then
    if call('EXISTS', P .. 'move') == 1 then return { 0, false, {}, {} } end -- no job is handed out during a move
    next_due = first_score('due')
    next_due = next_due and tonumber(next_due)
    if is_checked == '' and ((next_due and next_due <= now) or is_over(first_score('expiring'))) then return { 1 } end
  end
  local by_rank, queue_at, queues = queues_at(first + 5, tonumber(number))
  local chosen, turns = choose(by_rank, queue_at, tonumber(limit), tonumber(present))
  local jobs, put, held, expiries = hand_over(chosen, owner)
  for _, line in ipairs(chosen) do call('ZREMRANGEBYRANK', line.key, 0, line.taken - 1) end
  call_with('ZADD', P .. 'h:' .. owner, held)
  for _, command in ipairs(expiries) do call(unpack(command)) end
  local masks = {}
  for _, queue in pairs(queues) do
    if queue.mask ~= queue.was then masks[#masks + 1], masks[#masks + 2] = queue.name, queue.mask end
  end
  call_with('HSET', P .. 'open', masks)
  if #jobs > 0 then call('SADD', P .. 'holders', owner) end
  return { 0, next_due and math.max(0, next_due - now) or false, turns, jobs }, put
end
