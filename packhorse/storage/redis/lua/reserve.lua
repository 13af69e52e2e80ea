-- flags: allow-oom
-- parts: head, events, counts, take
-- Takes waiting jobs for one worker; see parts/take.lua. Answers 0 when the worker is not known.
if not call('ZSCORE', P .. 'beats', ARGV[3]) then return 0 end
local reply, texts = take(3)
write_counts()
write_events(texts)
return reply
