-- flags: no-writes
-- All clients: records, last signs of life, and how many outcomes each waits for, in the order of the records.
local names, wanted = call('HGETALL', P .. 'clients'), {}
for i = 1, #names, 2 do wanted[#wanted + 1] = call('SCARD', P .. 'subs:' .. names[i]) end
return { names, call('ZRANGE', P .. 'client_beats', 0, -1, 'WITHSCORES'), wanted }
