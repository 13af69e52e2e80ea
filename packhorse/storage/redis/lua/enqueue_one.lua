-- parts: notify
-- Stores one plain job that is due at once: what most calls of enqueue are, so there is nothing here that it does not need.
-- ARGV: id, body, its event packed; flags, priority, rank, queue and place, packed; and if their names are to become known
-- the task and its JSON. Answers 0 if the id is there already, and not by this very call; nothing while the storage is
-- moved.
local id, body, packed, kind, task, told = unpack(ARGV, 3)
local flags, priority, rank, queue, place = struct.unpack('>BBBI2c0I2c0', kind)
local key = P .. 'j:' .. id
local there = call('MGET', key, P .. 'move', P .. 'n:job', P .. 'n:event')
if there[2] then return false end
if task then  -- also for a job that is there already: the caller takes them for known from now on
  call('HSETNX', P .. 'tasks', task, told)
  call('HSETNX', P .. 'queues', queue, '')
end
if there[1] then return again and 1 or 0 end
local seq, event = (there[3] or 0) + 1, (there[4] or 0) + 1
local seq_text, event_text = string.format('%.0f', seq), string.format('%.0f', event)
local head = struct.pack('>c1BI4I4I8I8I8I2I2c0I8I4I8BBI4I8', 'q', flags, 0, 0, now, now, 0, 0, #place, place, seq, 0, now,
  priority, rank, 0, event)
call('MSET', key, head, P .. 'b:' .. id, body, P .. 'n:job', seq_text, P .. 'n:event', event_text)
call('ZADD', P .. 'q:' .. queue, seq_text, id)
call('ZADD', P .. 'l:' .. rank .. ':' .. queue, seq_text, id)
call('XADD', P .. 'ev', event_text, 'a', at, 'e', packed)
local mask, flag = call('HGET', P .. 'open', queue) or 0, 2 ^ rank
if math.floor(mask / flag) % 2 == 0 then call('HSET', P .. 'open', queue, mask + flag) end
call('HINCRBY', P .. 'tally', 'q' .. place, 1)
call('HINCRBY', P .. 'total', 'added', 1)
local minute = string.format('%.0f', now - now % 60000000)
if call('HINCRBY', P .. 'm:minute:' .. minute, 'added:' .. place, 1) == 1 then
  call('ZADD', P .. 'm:minute', minute, minute)
end
notify()
return 1
