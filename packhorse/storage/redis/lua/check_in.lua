-- flags: allow-oom
-- parts: head, log
-- Signs of life. ARGV: keep, and for each job id, owner, fence, number of fields, their names and
-- values ('' and no value: none), number of log lines, their kinds and messages. Returns one letter for each: g (go on),
-- s (stop), o (another owner has the job).
local keep, i = tonumber(ARGV[3]), 4
local answers = {}

-- The fields and lines of the check-in at `i`. Moves `i` to the next check-in.
local function wishes()
  local fields, lines = {}, {}
  local number = tonumber(ARGV[i])
  for k = i + 1, i + 3 * number, 3 do fields[#fields + 1] = { ARGV[k], ARGV[k + 1], ARGV[k + 2] } end
  i = i + 1 + 3 * number
  number = tonumber(ARGV[i])
  for k = i + 1, i + 2 * number, 2 do lines[#lines + 1] = { ARGV[k], ARGV[k + 1] } end
  i = i + 1 + 2 * number
  return fields, lines
end

while i <= #ARGV do
  local id, owner, fence = unpack(ARGV, i, i + 2)
  i = i + 3
  local fields, lines = wishes()
  local head, answer = call('GET', P .. 'j:' .. id), 'o'
  if head then
    local is_whole, state, flags, its_fence, attempts, _, queued, started, its_owner, place, seq, result, tail =
      pcall(read, HOT, head)
    if is_whole and its_owner == owner and its_fence == tonumber(fence) and (state == 'r' or state == 'x') then
      local _, cold, rest = pcall(cold_of, sub(head, tail))
      if type(cold) ~= 'table' then cold, rest = {}, '' end
      for _, field in ipairs(fields) do
        local name, kind, value = unpack(field)
        if kind == 'n' then cold[name] = tonumber(value) elseif kind == 't' then cold[name] = value else cold[name] = nil end
      end
      cold.checkin_at = now
      flags = flags - flags % 2 + 1
      call('SET', P .. 'j:' .. id, write(HOT, state, flags, its_fence, attempts, now, queued, started, #owner, owner,
        #place, place, seq, #result, result) .. with_cold(sub(head, tail), cold, rest))
      if not (again and has_line(id, lines)) then write_lines(id, attempt_of(state, cold), lines, keep) end
      answer = cold.abort_at and 's' or 'g'
    end
  end
  answers[#answers + 1] = answer
end
return table.concat(answers)
