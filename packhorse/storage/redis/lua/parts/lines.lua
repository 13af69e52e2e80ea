-- open_line(rank, queue): a job of this rank is queued, so a reserve has to look there.
local function open_line(rank, queue)
  local mask, flag = tonumber(call('HGET', P .. 'open', queue) or 0), 2 ^ rank
  if math.floor(mask / flag) % 2 == 0 then call('HSET', P .. 'open', queue, mask + flag) end
end
