-- complete(first) -> verdicts, next: outcomes of one worker whose tasks have returned, as `transitions.settled` settles
-- them. ARGV from `first` on: owner, number, and for each job id; fence, ran, ago + ran and has-a-result packed; result.
-- A verdict is one letter: a (accepted), r (repeated), s (stale). No id may come twice.
-- Needs the parts head, events, counts.
local OUTCOME = '>I4I8I8B'
local WHOLE = HOT .. 'c10I4' -- up to the cold: created_at, priority and rank in one, the length of the cold
local RAN_UNTIL = '\0\0\0\20\129\169ran_until\207' -- a cold with only this field, up to its eight bytes

-- step_of(duration) -> name, low, high: the step for durations above low and up to high, as in metrics.py.
local function step_of(duration)
  local low, power, digits = -1, 100, { 10, 15, 20, 30, 40, 60, 80 }
  while power < 1e10 do
    for _, digit in ipairs(digits) do
      local high = digit * power
      if duration <= high then
        return high < 1e6 and string.format('%gms', high / 1e3) or string.format('%gs', high / 1e6), low, high
      end
      low = high
    end
    power = power * 10
  end
  if duration <= 1e11 then return '100000s', low, 1e11 end
  return 'longer', 1e11, math.huge
end

-- The jobs of one place are counted together.
local function new_place(owner, place)
  local middle = write('>I2c0I2c0', #owner, owner, #place, place) -- of their heads
  return { queue = queue_in(place), middle = middle, r = 0, x = 0, done = 0, ran = 0, waited = 0, runs = {},
    waits = {} }
end

local function count_place(place, counted)
  tally('r' .. place, -counted.r)
  tally('x' .. place, -counted.x)
  tally('c' .. place, counted.done)
  measure('completed', place, counted.done)
  measure('ran', place, counted.ran)
  measure('waited', place, counted.waited)
  for step, number in pairs(counted.runs) do measure('run_' .. step, place, number) end
  for step, number in pairs(counted.waits) do measure('wait_' .. step, place, number) end
end

-- Up to 50 jobs whose events share an entry: a group of those that began, and a group of all, which ended.
local function new_batch()
  return { entry = next_entry(), count = 0, begins = 0, one_queue = true, ids = {}, fences = {}, rans = {}, queues = {},
    begun = {}, begun_fences = {}, begun_ats = {}, begun_queues = {} }
end

local function write_batch(owner, b)
  local ended = { b.count, b.ids, 'completed', 'completed', owner, b.one_queue and b.queues[1] or b.queues, b.fences, b.rans,
    false, false }
  local groups = ended
  if b.begins > 0 then
    groups = { { b.begins, b.begun, 'started', 'running', owner, b.one_queue and b.queues[1] or b.begun_queues,
      b.begun_fences, false, b.begun_ats, false }, ended }
  end
  add_entry(at, b.count + b.begins, cmsgpack.pack(groups))
end

-- An odd job leaves the sets of expiring jobs and of jobs to stop, and loses its failure. `frees` collects the commands.
local function tidy(owner, id, mark, cold, frees)
  if cold.expire_at then frees[#frees + 1] = { 'expiring', mark } end
  if cold.abort_at then frees[#frees + 1] = { 'stop:' .. owner, id } end
  cold.expire_at, cold.reason, cold.error, cold.cause, cold.last_owner = nil, nil, nil, nil, nil
end

local function complete(first)
  local owner, number = ARGV[first], tonumber(ARGV[first + 1])
  local ids, verdicts, places, batch = {}, {}, {}, nil
  local done, put, finished, kept, subscribed, frees = {}, {}, {}, {}, {}, {}
  local count, in_finished, in_kept = 0, 0, 0
  local wait, wait_low, wait_high, run, run_low, run_high = '', 0, 0, '', 0, 0
  first = first + 2
  for i = 1, number do ids[i] = ARGV[first + 3 * i - 3] end
  local heads, keys = texts_of('j:', ids)
  -- This loop reads and decides; nothing is written yet.
  for i = 1, number do
    local head, verdict = heads[i], 's'
    if head then
      local is_whole, state, flags, fence, attempts, _, queued, started, its_owner, place, seq, _, birth, length, cold_at =
        pcall(read, WHOLE, head)
      local its_fence, ran, gone, has_result = read(OUTCOME, ARGV[first + 3 * i - 2])
      if not is_whole or fence ~= its_fence or its_owner ~= owner or fence == 0 then
        verdict = 's'
      elseif state ~= 'r' and state ~= 'x' then
        verdict = 'r'
      else
        verdict, count = 'a', count + 1
        local counted = places[place]
        if not counted then
          counted = new_place(owner, place)
          places[place] = counted
        end
        if not batch then batch = new_batch() end
        local b, id, mark = batch, ids[i], seq .. ids[i]
        local result = ARGV[first + 3 * i - 1]
        local c = b.count + 1
        b.count, b.ids[c], b.fences[c], b.rans[c], b.queues[c] = c, id, fence, ran, counted.queue
        if b.queues[1] ~= counted.queue then b.one_queue = false end
        local started_at
        if state == 'r' then
          attempts = attempts + 1
          started = now - gone
          if started < queued then started = queued end
          started_at = write('>I8', started)
          local n = b.begins + 1
          b.begins, b.begun[n], b.begun_fences[n], b.begun_ats[n], b.begun_queues[n] = n, id, fence, started, counted.queue
        else
          started_at = sub(head, 27, 34)
        end
        -- Most jobs have no cold yet, and were measured (else `ran` is 0).
        local lead, ran_until, tail = RAN_UNTIL, '', nil
        if length == 0 and ran > 0 then
          ran_until, tail = write('>I8', started + ran), sub(head, cold_at)
        else
          local cold, rest = cold_of(sub(head, cold_at - 14))
          if flags % 2 == 1 then tidy(owner, id, mark, cold, frees) end
          cold.ran_until = ran > 0 and started + ran or nil
          birth, lead, tail = '', '', with_cold(birth, cold, rest)
        end
        if flags < 4 then
          finished[in_finished + 1], finished[in_finished + 2] = at, mark
          in_finished = in_finished + 2
        else
          kept[in_kept + 1], kept[in_kept + 2] = at, mark
          in_kept = in_kept + 2
          if flags % 8 >= 4 then subscribed[#subscribed + 1] = { id, mark } end
        end
        put[2 * count - 1] = keys[i]
        put[2 * count] = front('c', flags + 2 * has_result, fence, attempts) .. sub(head, 19, 26) .. started_at
          .. counted.middle .. seq .. write('>I4', #result) .. result .. birth .. lead .. ran_until .. tail .. b.entry
        done[count] = id
        counted[state], counted.done, counted.ran = counted[state] + 1, counted.done + 1, counted.ran + ran
        local waited = queued > 0 and started > queued and started - queued or 0
        counted.waited = counted.waited + waited
        -- Most jobs have waited and run about as long as the one before.
        if waited <= wait_low or waited > wait_high then wait, wait_low, wait_high = step_of(waited) end
        if ran <= run_low or ran > run_high then run, run_low, run_high = step_of(ran) end
        local waits, runs = counted.waits, counted.runs
        waits[wait], runs[run] = (waits[wait] or 0) + 1, (runs[run] or 0) + 1
        if c == EVENTS_AT_ONCE then
          write_batch(owner, b)
          batch = nil
        end
      end
    end
    verdicts[i] = verdict
  end
  if batch then write_batch(owner, batch) end
  if count > 0 then
    call_with('ZREM', P .. 'h:' .. owner, done)
    for _, free in ipairs(frees) do call('ZREM', P .. free[1], free[2]) end
    call_with('MSET', nil, put)
    call_with('ZADD', P .. 'f:completed', finished)
    call_with('ZADD', P .. 'kept:completed', kept)
    for _, one in ipairs(subscribed) do
      for _, client in ipairs(call('SMEMBERS', P .. 'sub:' .. one[1])) do
        call('ZADD', P .. 'ready:' .. client, at, one[2])
      end
    end
    for place, counted in pairs(places) do count_place(place, counted) end
  end
  return table.concat(verdicts), first + 3 * number
end
