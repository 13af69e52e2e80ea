-- flags: no-writes
-- Every client: records, when each was last heard of, and of each, in the order of the records, how many jobs it wants.
local told, wanted = call('HGETALL', P .. 'clients'), {}
for i = 1, #told, 2 do wanted[#wanted + 1] = call('SCARD', P .. 'subs:' .. told[i]) end
return { told, call('ZRANGE', P .. 'client_beats', 0, -1, 'WITHSCORES'), wanted }
