-- flags: allow-oom
-- parts: head, events, counts
-- Marks reserved jobs as running. ARGV: number of workers, for each its id, number of jobs, and for each job id, fence, how
-- long ago it began. Returns the verdicts, one text for each worker, with the letters of parts/complete.lua.
local put, size = {}, 0

-- The jobs of one worker, from ARGV[first] on. Returns the verdicts and where the next worker begins. Writes nothing.
local function start(first)
  local owner, number, ids = ARGV[first], tonumber(ARGV[first + 1]), {}
  local verdicts, seen, group, fences, queues, ats, entry = {}, {}, {}, {}, {}, {}, nil
  local function write_group()
    if #group == 0 then return end
    add_entry(at, #group, cmsgpack.pack({ #group, group, 'started', 'running', owner, queues, fences, false, ats, false }))
    group, fences, queues, ats = {}, {}, {}, {}
  end
  for i = 1, number do ids[i] = ARGV[first + 3 * i - 1] end
  local heads, keys = texts_of('j:', ids)
  for i, id in ipairs(ids) do
    local head = heads[i]
    verdicts[i] = 's'
    if head then
      local is_whole, state, flags, fence, attempts, queued, its_owner, place =
        pcall(read, '>c1BI4I4xxxxxxxxI8xxxxxxxxI2c0I2c0', head)
      if is_whole and its_owner == owner and fence == tonumber(ARGV[first + 3 * i]) and (state == 'r' or state == 'x') then
        verdicts[i] = 'r'
        if state == 'r' and not seen[id] then
          verdicts[i], seen[id] = 'a', true
          if #group == 0 then entry = next_entry() end
          local n, started = #group + 1, math.max(now - tonumber(ARGV[first + 3 * i + 1]), queued)
          group[n], fences[n], queues[n], ats[n] = id, fence, queue_in(place), started
          put[size + 1] = keys[i]
          put[size + 2] = front('x', flags, fence, attempts + 1) .. sub(head, 19, 26)
            .. write('>I8', started) .. sub(head, 35) .. entry
          size = size + 2
          tally('r' .. place, -1)
          tally('x' .. place, 1)
          if #group == EVENTS_AT_ONCE then write_group() end
        end
      end
    end
  end
  write_group()
  return table.concat(verdicts), first + 2 + 3 * number
end

local answer, first = {}, 4
for i = 1, tonumber(ARGV[3]) do answer[i], first = start(first) end
write_counts()
write_events(put)
return answer
