-- parts: bell
-- Stores one plain job that is due at once: what most calls of enqueue are, so there is nothing here that it does not need.
-- ARGV: id, body, queue, place, rank, priority, flags, its event packed, and if their names are to become known the task
-- and its JSON. Answers 0 if the id is there already, and not by this very call;
-- nothing while the storage is moved.
if call('EXISTS', P .. 'move') == 1 then return false end
local id, body, queue, place, rank, priority, flags, packed, task, told = unpack(ARGV, 3)
if task then
  call('HSETNX', P .. 'tasks', task, told)
  call('HSETNX', P .. 'queues', queue, '')
end
local key = P .. 'j:' .. id
local seq, event = call('INCR', P .. 'n:job'), call('INCR', P .. 'n:event')
local head = struct.pack('>c1BI4I4I8I8I8I2I2c0I8I4I8BBI4I8', 'q', flags, 0, 0, now, now, 0, 0, #place, place, seq, 0, now,
  priority, rank, 0, event)
if call('MSETNX', key, head, P .. 'b:' .. id, body) == 0 then
  call('DECR', P .. 'n:job')
  call('DECR', P .. 'n:event')
  return again and 1 or 0
end
call('ZADD', P .. 'q:' .. queue, seq, id)
call('ZADD', P .. 'l:' .. rank .. ':' .. queue, seq, id)
call('XADD', P .. 'ev', event, 'a', at, 'e', packed)
local mask, flag = tonumber(call('HGET', P .. 'open', queue) or 0), 2 ^ rank
if math.floor(mask / flag) % 2 == 0 then call('HSET', P .. 'open', queue, mask + flag) end
local minute = string.format('%.0f', now - now % 60000000)
call('HINCRBY', P .. 'tally', 'q' .. place, 1)
call('HINCRBY', P .. 'total', 'added', 1)
if call('HINCRBY', P .. 'm:minute:' .. minute, 'added:' .. place, 1) == 1 then
  call('ZADD', P .. 'm:minute', minute, minute)
end
ring()
return 1
