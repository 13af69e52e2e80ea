-- parts: head, log
-- Adds lines to a job's log. ARGV: id, owner, fence, keep, and for each line kind, message, attempt, ago.
-- Returns 1, or 0 if the token is stale or the storage is being copied. A repeated call adds nothing if the last line
-- is stored already.
local move = call('GET', P .. 'move')
if move and not string.find(move, '"stage":"closing"', 1, true) then return 0 end
local id, owner, fence, keep = unpack(ARGV, 3, 6)
local head = call('GET', P .. 'j:' .. id)
if not head then return 0 end
local is_whole, state, _, its_fence, _, _, _, _, its_owner, _, _, _, tail = pcall(read, HOT, head)
if not is_whole then return 0 end
if its_owner ~= owner or its_fence ~= tonumber(fence) or its_fence == 0 then return 0 end
local lines = {}
for i = 7, #ARGV, 4 do lines[#lines + 1] = { unpack(ARGV, i, i + 3) } end
if again and has_line(id, lines) then return 1 end
write_lines(id, attempt_of(state, cold_of(sub(head, tail))), lines, tonumber(keep))
return 1
