-- The two most frequent cases of a reserve: no job is queued, or a single one that was never held. This does what
-- parts/take.lua would do, from ARGV[3] on, at half the cost; for an idle worker that is the time until its job begins. In
-- any other case it writes nothing, and the script continues. The line stays open until the next reserve. Comes before the
-- parts that have functions.
do
  local owner, limit, _, _, number = unpack(ARGV, 3, 7)
  local is_due = call('EXISTS', P .. 'move', P .. 'due', P .. 'expiring') > 0
  if not is_due and tonumber(limit) > 0 and tonumber(number) > 0 and tonumber(number) <= 32 then
    local queue, mask, open = nil, 0, 0
    for i, its_mask in ipairs(call('HMGET', P .. 'open', unpack(ARGV, 9, 8 + number))) do
      if its_mask and its_mask ~= '0' then queue, mask, open = ARGV[8 + i], tonumber(its_mask), open + 1 end
    end
    if open == 0 then return { 0, false, {}, {} } end
    local fraction, rank = math.frexp(mask)
    if open == 1 and fraction == 0.5 and rank <= 13 then -- a single line; the bit after the ranks means paused
      local line = P .. 'l:' .. (rank - 1) .. ':' .. queue
      local found = call('ZRANGE', line, 0, 1, 'WITHSCORES')
      local id = found[1]
      if #found == 2 then
        local key = P .. 'j:' .. id
        local head, body, event = unpack(call('MGET', key, P .. 'b:' .. id, P .. 'n:event'))
        if head and body and string.sub(head, 1, 1) == 'q' and string.byte(head, 2) % 2 == 0
          and string.sub(head, 35, 36) == '\0\0' and pcall(struct.unpack, '>I2c0I8', head, 37) then
          local fence, attempts = struct.unpack('>I4I4', head, 3)
          event = (event or 0) + 1
          head = struct.pack('>c1BI4I4I8', 'r', string.byte(head, 2), fence + 1, attempts, now) .. string.sub(head, 19, 34)
            .. struct.pack('>I2c0', #owner, owner) .. string.sub(head, 37) .. struct.pack('>I8', event)
          local place = struct.unpack('>I2c0', head, 37 + #owner)
          local event_text = string.format('%.0f', event)
          call('DEL', line)
          call('ZADD', P .. 'h:' .. owner, found[2], id)
          call('SADD', P .. 'holders', owner)
          call('HINCRBY', P .. 'tally', 'q' .. place, -1)
          call('HINCRBY', P .. 'tally', 'r' .. place, 1)
          call('MSET', key, head, P .. 'n:event', event_text)
          call('XADD', P .. 'ev', event_text, 'a', at, 'e', cmsgpack.pack({ 1, id, 'reserved', 'reserved', owner, queue,
            fence + 1, false, false, false }))
          return { 0, false, { { queue, 1 } }, { id, head, body } }
        end
      end
    end
  end
end
