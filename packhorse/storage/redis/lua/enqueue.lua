-- parts: notify, head, events, lines, counts
-- Stores plain jobs (no unique key, no subscriber, no id twice). ARGV: number of new names, for each task, its JSON, queue;
-- number of runs, for each what its jobs have in common: number of jobs, their places in the batch (2 bytes each, from 0;
-- '' for an only run), queue, place, rank, priority, flags, delay, due_at or '', expires or '', total_timeout or '', and
-- then id and body of each job.
-- Returns the ids that were stored before, and leaves these jobs alone. A repeated call takes them for its own.
-- While the storage is being moved it stores nothing and returns false.
local SOON = 2000000

-- The ids that are stored already, read before anything is written.
local function existing_ids(keys)
  local existing, exists = {}, {}
  for first = 1, #keys, AT_ONCE do
    local last = math.min(first + AT_ONCE - 1, #keys)
    if call('EXISTS', unpack(keys, first, last)) > 0 then
      for k = first, last do
        if call('EXISTS', keys[k]) == 1 then
          existing[#existing + 1] = sub(keys[k], #P + 3)
          exists[keys[k]] = true
        end
      end
    end
  end
  return existing, exists
end

-- When a job that is queued now expires.
local function expiry(expires, total)
  if expires and total then return now + math.min(expires, total) end
  return (expires or total) and now + (expires or total)
end

if call('EXISTS', P .. 'move') == 1 then return false end
local names, i = tonumber(ARGV[3]), 4
i = i + 3 * names
local runs, keys, number = {}, {}, 0
local start = P .. 'j:'
for r = 1, tonumber(ARGV[i]) do
  local run = { count = tonumber(ARGV[i + 1]), places = ARGV[i + 2], at = i + 3, first = i + 12 }
  for k = run.first, run.first + 2 * run.count - 1, 2 do
    number = number + 1
    keys[number] = start .. ARGV[k]
  end
  i = i + 11 + 2 * run.count
  runs[r] = run
end
local existing, exists = existing_ids(keys)
local seq = call('INCRBY', P .. 'n:job', number) - number + 1 -- of the first job; existing ones leave gaps
local texts, size, key, wakes = {}, 0, 0, false

local function add(run)
  local queue, place, rank, priority, flags, delay, due_at, expires, total = unpack(ARGV, run.at, run.at + 8)
  local due = due_at == '' and now + delay or tonumber(due_at)
  local is_queued = due <= now
  local cold = { total_timeout = tonumber(total) }
  if is_queued then cold.expire_at = expiry(tonumber(expires), cold.total_timeout) else cold.due_at = due end
  if cold.expire_at or cold.total_timeout then flags = flags + 1 end
  local packed = next(cold) == nil and '' or cmsgpack.pack(cold)
  local before = write('>c1BI4I4I8I8I8I2I2', is_queued and 'q' or 's', flags, 0, 0, now, is_queued and now or 0, 0, 0, #place)
    .. place
  local behind = write('>I4I8BBI4', 0, now, priority, rank, #packed) .. packed
  local line, moment, moments, group, count = {}, cold.expire_at or cold.due_at, {}, {}, 0
  local tail = behind
  local function write_group()
    add_entry(at, #group, cmsgpack.pack({ #group, group, 'added', is_queued and 'queued' or 'scheduled', false, queue, false,
      not is_queued and due, false, false }))
    group = {}
  end
  for k = run.first, run.first + 2 * run.count - 1, 2 do
    key = key + 1
    if not exists[keys[key]] then
      if #group == 0 then tail = behind .. next_entry() end
      count = count + 1
      local index = (k - run.first) / 2
      local its_seq = seq + (run.places == '' and index or read('>I2', run.places, 2 * index + 1))
      local id, seq_text = ARGV[k], write('>I8', its_seq)
      texts[size + 1], texts[size + 2] = keys[key], before .. seq_text .. tail
      texts[size + 3], texts[size + 4] = P .. 'b:' .. id, ARGV[k + 1]
      size = size + 4
      line[2 * count - 1], line[2 * count] = its_seq, id
      if moment then moments[2 * count - 1], moments[2 * count] = moment, seq_text .. id end
      group[#group + 1] = id
      if #group == EVENTS_AT_ONCE then write_group() end
    end
  end
  if #group > 0 then write_group() end
  if count == 0 then return end
  call_with('ZADD', P .. 'q:' .. queue, line)
  call_with('ZADD', P .. (is_queued and 'expiring' or 'due'), moments)
  if is_queued then
    call_with('ZADD', P .. 'l:' .. rank .. ':' .. queue, line)
    open_line(rank, queue)
  end
  tally((is_queued and 'q' or 's') .. place, count)
  measure('added', place, count)
  wakes = wakes or due < now + SOON
end

for n = 4, 1 + 3 * names, 3 do
  local task, packed_task, queue = unpack(ARGV, n, n + 2)
  call('HSETNX', P .. 'tasks', task, packed_task)
  call('HSETNX', P .. 'queues', queue, '')
end
for _, run in ipairs(runs) do add(run) end
call_with('MSET', nil, texts)
write_counts()
write_events()
if wakes then notify() end
return again and {} or existing
