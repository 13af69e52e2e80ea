-- flags: allow-oom
-- parts: notify, head, events, lines, counts, apply, complete, take
-- finish.lua and then reserve.lua. ARGV: the worker that reserves, then the arguments of both. Returns {verdicts, jobs}.
-- Returns 0 as finish.lua does, or 1 if the worker is unknown; then nothing is written.
if not call('ZSCORE', P .. 'beats', ARGV[3]) then return 1 end
cursor = 4
if ARGV[4] == '0' then cursor = 5 elseif not apply() then return 0 end
local verdicts, first = {}, cursor + 1
for i = 1, tonumber(ARGV[cursor]) do verdicts[i], first = complete(first) end
local reply, texts = take(first)
write_counts()
write_events(texts)
return { verdicts, reply }
