-- flags: no-writes
-- parts: head
-- Jobs by id: head, body, head, body …; false where there is none. A head without a body is a broken job.
local ids = { unpack(ARGV, 3) }
local heads, bodies, reply = texts_of('j:', ids), texts_of('b:', ids), {}
for i = 1, #ids do reply[2 * i - 1], reply[2 * i] = heads[i], bodies[i] end
return reply
