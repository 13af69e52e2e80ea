-- The beginning of every script. KEYS[1] is the prefix of all keys; ARGV[1] the clock of a test, or ''; ARGV[2] is '1' if
-- this call is sent again because its reply was lost. The arguments of the operation start at ARGV[3].
local P, call = KEYS[1], redis.call
local at, again = ARGV[1], ARGV[2] == '1'
if at == '' then
  local time = call('TIME')
  at = time[1] .. string.format('%06d', time[2])
end
local now = tonumber(at) -- `at` is the same as text: Lua itself would write 1.7e+15
