-- flags: allow-oom
-- parts: notify, head, events, lines, counts, apply, complete
-- Stores outcomes. ARGV: the words of a transaction for those that are not completed, or 0; number of workers, and for
-- each its completed outcomes (parts/complete.lua). Returns their verdicts, one text for each worker. Returns 0, and
-- writes nothing, if a value that the transaction has read has changed.
if ARGV[3] == '0' then cursor = 4 elseif not apply() then return 0 end
local verdicts, first = {}, cursor + 1
for i = 1, tonumber(ARGV[cursor]) do verdicts[i], first = complete(first) end
write_counts()
write_events()
return verdicts
