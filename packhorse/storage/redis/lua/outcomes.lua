-- flags: no-writes
-- Finished jobs that client ARGV[3] waits for: after the first ARGV[4], at most ARGV[5]. Returns id, head and body of each.
local from = tonumber(ARGV[4])
local found = {}
for _, mark in ipairs(call('ZRANGE', P .. 'ready:' .. ARGV[3], from, from + tonumber(ARGV[5]) - 1)) do
  local id, size = string.sub(mark, 9), #found
  found[size + 1], found[size + 2], found[size + 3] = id, call('GET', P .. 'j:' .. id), call('GET', P .. 'b:' .. id)
end
return found
