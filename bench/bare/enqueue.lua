-- Enqueue: write head, body, queue, line, an event per 50 jobs, counts, a token for a waiting worker.
-- KEYS: prefix. ARGV: task, which is also the queue; then id and body of each job.
local P, call, pack = KEYS[1], redis.call, struct.pack
local task, number = ARGV[1], (#ARGV - 1) / 2
local time = call('TIME')
local at = time[1] .. string.format('%06d', time[2])
local now, place = tonumber(at), #task .. ':' .. task .. task
local seq = call('INCRBY', P .. 'n:job', number) - number
local event = call('INCRBY', P .. 'n:event', number) - number + 1
local front = pack('>c1BI4I4I8I8I8I2I2', 'q', 0, 0, 0, now, now, 0, 0, #place) .. place
local back = pack('>I4I8BBI4', 0, now, 1, 12, 0)
local texts, line, ids = {}, {}, {}
for i = 1, number do
  local id = ARGV[2 * i]
  if i % 50 == 1 then back = string.sub(back, 1, 18) .. pack('>I8', event + i - 1) end
  texts[4 * i - 3], texts[4 * i - 2] = P .. 'j:' .. id, front .. pack('>I8', seq + i) .. back
  texts[4 * i - 1], texts[4 * i] = P .. 'b:' .. id, ARGV[2 * i + 1]
  line[2 * i - 1], line[2 * i] = seq + i, id
  ids[#ids + 1] = id
  if i % 50 == 0 or i == number then
    local packed = cmsgpack.pack({ #ids, ids, 'added', 'queued', false, task, false, false, false, false })
    call('XADD', P .. 'ev', string.format('%.0f-0', event + i - #ids), 'a', at, 'e', packed)
    ids = {}
  end
end
for first = 1, #texts, 4000 do call('MSET', unpack(texts, first, math.min(first + 3999, #texts))) end
call('ZADD', P .. 'q:' .. task, unpack(line))
call('ZADD', P .. 'l:12:' .. task, unpack(line))
call('HSET', P .. 'open', task, 2 ^ 12)
call('HINCRBY', P .. 'tally', 'q' .. place, number)
call('HINCRBY', P .. 'm:minute:' .. string.format('%.0f', now - now % 60000000), 'added:' .. place, number)
call('HINCRBY', P .. 'total', 'added', number)
if call('EXISTS', P .. 'bell') == 0 then call('RPUSH', P .. 'bell', '16') end
