-- flags: allow-oom
-- parts: head, events, counts
-- Marks reserved jobs as running. ARGV: number of workers, for each its name, number of jobs, and for each job id, fence.
-- Answers the verdicts, one text for each worker; the letters are those of parts/complete.lua.
local put, size = {}, 0

-- One worker's jobs, from ARGV[first] on; answers the verdicts and where the next worker's begin. Writes nothing.
local function start(first)
  local owner, number, ids = ARGV[first], tonumber(ARGV[first + 1]), {}
  local verdicts, seen, told, fences, queues, entry = {}, {}, {}, {}, {}, nil
  local function tell_told()
    if #told == 0 then return end
    tell(at, #told, cmsgpack.pack({ #told, told, 'started', 'running', owner, queues, fences, false, false, false }))
    told, fences, queues = {}, {}, {}
  end
  for i = 1, number do ids[i] = ARGV[first + 2 * i] end
  local heads, keys = texts_of('j:', ids)
  for i, id in ipairs(ids) do
    local head = heads[i]
    verdicts[i] = 's'
    if head then
      local state, flags, fence, attempts, its_owner, place = read('>c1BI4I4xxxxxxxxxxxxxxxxxxxxxxxxI2c0I2c0', head)
      if its_owner == owner and fence == tonumber(ARGV[first + 2 * i + 1]) and (state == 'r' or state == 'x') then
        verdicts[i] = 'r'
        if state == 'r' and not seen[id] then
          verdicts[i], seen[id] = 'a', true
          if #told == 0 then entry = next_entry() end
          told[#told + 1], fences[#fences + 1], queues[#queues + 1] = id, fence, queue_in(place)
          put[size + 1] = keys[i]
          put[size + 2] = front('x', flags, fence, attempts + 1) .. sub(head, 19, 26) .. stamp .. sub(head, 35) .. entry
          size = size + 2
          tally('r' .. place, -1)
          tally('x' .. place, 1)
          if #told == EVENTS_AT_ONCE then tell_told() end
        end
      end
    end
  end
  tell_told()
  return table.concat(verdicts), first + 2 + 2 * number
end

local answer, first = {}, 4
for i = 1, tonumber(ARGV[3]) do answer[i], first = start(first) end
call_with('MSET', nil, put)
write_counts()
write_events()
return answer
