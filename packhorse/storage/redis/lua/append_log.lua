-- parts: head, log
-- Adds lines to a job's log. ARGV: id, owner, fence, keep, what stands for lost lines, and for each line kind, message.
-- Answers 1; 0 when the token is stale, and when the storage is being copied. Sent again, it adds nothing if the last line is there already.
local move = call('GET', P .. 'move')
if move and not string.find(move, '"stage":"closing"', 1, true) then return 0 end
local id, owner, fence, keep, dropped = unpack(ARGV, 3, 7)
local head = call('GET', P .. 'j:' .. id)
if not head then return 0 end
local its_fence, attempts = read('>I4I4', head, 3)
local its_owner = read('>I2c0', head, 35)
if its_owner ~= owner or its_fence ~= tonumber(fence) or its_fence == 0 then return 0 end
local lines = {}
for i = 8, #ARGV, 2 do lines[#lines + 1] = { ARGV[i], ARGV[i + 1] } end
if again and has_line(id, lines) then return 1 end
write_lines(id, attempts, lines, tonumber(keep), dropped)
return 1
