-- flags: no-writes
-- The latest failures: after the first ARGV[3], at most ARGV[4]. Returns the cause and the fields of each.
local found = {}
local from = tonumber(ARGV[3])
for _, cause in ipairs(call('ZRANGE', P .. 'failures', from, from + tonumber(ARGV[4]) - 1)) do
  local fields = call('HMGET', P .. 'failure:' .. cause,
    'task', 'pattern', 'place', 'number', 'first_at', 'last_at', 'last_job_id', 'silenced_until', 'silenced_by',
    'first_version', 'last_version', 'silenced_version')
  for i = 1, 12 do fields[i] = fields[i] or '' end
  found[#found + 1] = {cause, unpack(fields, 1, 12)}
end
return found
