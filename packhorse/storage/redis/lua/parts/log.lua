-- write_lines(id, attempts, lines, keep, dropped): adds {kind, message} lines to a job's log. Above `keep` lines the
-- oldest go, and the first that is left says so with `dropped`.
local function write_lines(id, attempts, lines, keep, dropped)
  local key, packed = P .. 'log:' .. id, {}
  local number = #lines > 0 and call('INCRBY', P .. 'n:line', #lines) - #lines
  for i, line in ipairs(lines) do
    packed[i] = cmsgpack.pack({ number + i, now, attempts, line[1], line[2] })
  end
  for first = 1, #packed, 1000 do call('RPUSH', key, unpack(packed, first, math.min(first + 999, #packed))) end
  if call('LLEN', key) <= keep then return end
  if keep <= 0 then
    call('DEL', key)
    return
  end
  call('LTRIM', key, -keep, -1)
  local oldest = cmsgpack.unpack(call('LINDEX', key, 0))
  oldest[4], oldest[5] = 'log', dropped
  call('LSET', key, 0, cmsgpack.pack(oldest))
end

-- Is the last of these lines the last of the log already?
local function has_line(id, lines)
  local last = #lines > 0 and call('LINDEX', P .. 'log:' .. id, -1)
  return last and cmsgpack.unpack(last)[5] == lines[#lines][2]
end
