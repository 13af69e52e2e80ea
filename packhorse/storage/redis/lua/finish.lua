-- flags: allow-oom
-- parts: notify, head, events, lines, counts, apply, complete
-- Writes outcomes down. ARGV: what a transaction has decided about those that are not plainly completed, or 0 instead;
-- number of workers, and for each its completed outcomes (parts/complete.lua). Answers their verdicts, one text for each
-- worker; 0 if the transaction came too late, and then nothing is written.
if ARGV[3] == '0' then cursor = 4 elseif not apply() then return 0 end
local verdicts, first = {}, cursor + 1
for i = 1, tonumber(ARGV[cursor]) do verdicts[i], first = complete(first) end
write_counts()
write_events()
return verdicts
