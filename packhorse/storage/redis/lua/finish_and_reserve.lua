-- flags: allow-oom
-- parts: notify, head, events, lines, counts, apply, complete, take
-- finish.lua and then reserve.lua in one. ARGV: the worker that reserves, and then both's. Answers {verdicts, jobs}; 0 when
-- the transaction came too late, 1 when the worker is not known: nothing is written then.
if not call('ZSCORE', P .. 'beats', ARGV[3]) then return 1 end
cursor = 4
if ARGV[4] == '0' then cursor = 5 elseif not apply() then return 0 end
local verdicts, first = {}, cursor + 1
for i = 1, tonumber(ARGV[cursor]) do verdicts[i], first = complete(first) end
local reply, texts = take(first)
write_counts()
write_events(texts)
return { verdicts, reply }
