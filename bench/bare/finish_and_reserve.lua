-- Complete a batch and take the next: write heads, finished, held, the line, three events per job, counts.
-- KEYS: prefix. ARGV: task, owner, how many to take, result; then the ids that are completed.
-- Returns ids and bodies of the jobs taken.
local P, call, pack, sub = KEYS[1], redis.call, struct.pack, string.sub
local task, owner, result = ARGV[1], ARGV[2], ARGV[4]
local time = call('TIME')
local at = time[1] .. string.format('%06d', time[2])
local now, place = tonumber(at), #task .. ':' .. task .. task
local stamp, held = pack('>I8', now), P .. 'h:' .. owner

local function heads_of(ids)
  local keys = {}
  for i, id in ipairs(ids) do keys[i] = P .. 'j:' .. id end
  return call('MGET', unpack(keys)), keys
end

-- One event per job, 50 per entry; returns the entry of each job.
local function add_events(ids, kind, state, fences, data)
  local first, entries = call('INCRBY', P .. 'n:event', #ids) - #ids + 1, {}
  for from = 1, #ids, 50 do
    local to = math.min(from + 49, #ids)
    local columns = { to - from + 1, { unpack(ids, from, to) }, kind, state, owner, task, { unpack(fences, from, to) }, data, false, false }
    call('XADD', P .. 'ev', string.format('%.0f-0', first + from - 1), 'a', at, 'e', cmsgpack.pack(columns))
    local entry = pack('>I8', first + from - 1)
    for i = from, to do entries[i] = entry end
  end
  return entries
end

local function count(changes)
  for letter, number in pairs(changes) do call('HINCRBY', P .. 'tally', letter .. place, number) end
end

local done = { unpack(ARGV, 5) }
if #done > 0 then
  local heads, keys = heads_of(done)
  local fences, put, finished = {}, {}, {}
  for i, head in ipairs(heads) do fences[i] = struct.unpack('>I4', head, 3) end
  local begun = add_events(done, 'started', 'running', fences, false)
  local ended = add_events(done, 'completed', 'completed', fences, 1)
  local ending = pack('>I4', #result) .. result
  local middle = pack('>I4', 1) .. stamp
  for i, head in ipairs(heads) do
    local seq_at = 37 + #owner + 2 + #place
    put[2 * i - 1] = keys[i]
    put[2 * i] = 'c' .. pack('B', 2) .. sub(head, 3, 6) .. middle .. sub(head, 19, 26) .. stamp
      .. sub(head, 35, seq_at + 7) .. ending .. sub(head, seq_at + 12) .. begun[i] .. ended[i]
    finished[2 * i - 1], finished[2 * i] = now, sub(head, seq_at, seq_at + 7) .. done[i]
  end
  call('MSET', unpack(put))
  call('ZADD', P .. 'f:completed', unpack(finished))
  call('ZREM', held, unpack(done))
  count({ r = -#done, c = #done })
  local bucket = P .. 'm:minute:' .. string.format('%.0f', now - now % 60000000)
  for _, counted in ipairs({ 'completed', 'ran', 'waited', 'run_1ms', 'wait_1s' }) do
    call('HINCRBY', bucket, counted .. ':' .. place, #done)
    call('HINCRBY', P .. 'total', counted, #done)
  end
end

local popped = call('ZPOPMIN', P .. 'l:12:' .. task, ARGV[3])
if #popped == 0 then return {} end
local ids, scores = {}, {}
for i = 1, #popped, 2 do
  ids[#ids + 1] = popped[i]
  scores[i], scores[i + 1] = popped[i + 1], popped[i]
end
local heads, keys = heads_of(ids)
local fences, put, bodies, answer = {}, {}, {}, {}
for i, head in ipairs(heads) do fences[i] = struct.unpack('>I4', head, 3) + 1 end
local entries = add_events(ids, 'reserved', 'reserved', fences, false)
local named = pack('>I2', #owner) .. owner
for i, head in ipairs(heads) do
  put[2 * i - 1] = keys[i]
  put[2 * i] = 'r' .. sub(head, 2, 2) .. pack('>I4', fences[i]) .. sub(head, 7, 10) .. stamp
    .. sub(head, 19, 34) .. named .. sub(head, 37) .. entries[i]
  bodies[i] = P .. 'b:' .. ids[i]
end
call('MSET', unpack(put))
call('ZADD', held, unpack(scores))
call('SADD', P .. 'holders', owner)
count({ q = -#ids, r = #ids })
for i, body in ipairs(call('MGET', unpack(bodies))) do answer[2 * i - 1], answer[2 * i] = ids[i], body end
return answer
