-- parts: notify
-- Stores one plain job that is due immediately. Most calls of enqueue are this one, so it is as short as it can be.
-- ARGV: id, body, its packed event; flags, priority, rank, queue and place, packed; for new names, the task and its JSON.
-- Returns 0 if the id was stored before, by another call; false while the storage is being moved.
local id, body, packed, kind, task, packed_task = unpack(ARGV, 3)
local flags, priority, rank, queue, place = struct.unpack('>BBBI2c0I2c0', kind)
local key = P .. 'j:' .. id
local there = call('MGET', key, P .. 'move', P .. 'n:job', P .. 'n:event')
if there[2] then return false end
if task then  -- also if the job exists: the caller takes the names for known from now on
  call('HSETNX', P .. 'tasks', task, packed_task)
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
