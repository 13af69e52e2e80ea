-- attempt_of(state, cold): the attempt that new lines of this job belong to: the present one, or the last.
local function attempt_of(state, cold)
  local failures = cold.failures or 0
  if state == 'r' or state == 'x' or state == 'c' then return failures + 1 end
  return math.max(1, failures)
end

-- The line in this text; a substitute if it cannot be read.
local function line_in(packed)
  local is_whole, line = pcall(cmsgpack.unpack, packed)
  return is_whole and type(line) == 'table' and type(line[5]) == 'string' and line or { 0, now, 0, 'log', '' }
end

-- How many lines this message replaces: 1 for itself, or the number that were dropped before.
local function stands_for(message)
  return tonumber(string.match(message, '^… (%d+) earlier lines were dropped …$')) or 1
end

-- write_lines(id, attempt, lines, keep): adds lines {kind, message, attempt or 0, ago} to a job's log. Above `keep` lines it
-- drops the oldest, and the first of the rest says how many were dropped so far.
local function write_lines(id, attempt, lines, keep)
  if #lines == 0 then return end
  local key, packed = P .. 'log:' .. id, {}
  local number = call('INCRBY', P .. 'n:line', #lines) - #lines
  for i, line in ipairs(lines) do
    local own = tonumber(line[3] or 0)
    packed[i] = cmsgpack.pack({ number + i, now - tonumber(line[4] or 0), own > 0 and own or attempt, line[1], line[2] })
  end
  for first = 1, #packed, 1000 do call('RPUSH', key, unpack(packed, first, math.min(first + 999, #packed))) end
  local surplus = call('LLEN', key) - keep
  if surplus <= 0 then return end
  if keep <= 0 then
    call('DEL', key)
    return
  end
  local lost = 0
  for first = 0, surplus, 1000 do
    for _, line in ipairs(call('LRANGE', key, first, math.min(first + 999, surplus))) do
      lost = lost + stands_for(line_in(line)[5])
    end
  end
  call('LTRIM', key, -keep, -1)
  local oldest = line_in(call('LINDEX', key, 0))
  oldest[4], oldest[5] = 'log', string.format('… %.0f earlier lines were dropped …', lost)
  call('LSET', key, 0, cmsgpack.pack(oldest))
end

-- Is the last of these lines the last of the log?
local function has_line(id, lines)
  local last = #lines > 0 and call('LINDEX', P .. 'log:' .. id, -1)
  return last and line_in(last)[5] == lines[#lines][2]
end
