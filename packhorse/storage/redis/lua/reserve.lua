-- flags: allow-oom
-- parts: known, take_one, head, events, counts, take
-- Takes waiting jobs for one worker; see parts/take.lua. Answers 0 when the worker is not known.
local reply, texts = take(3)
write_counts()
write_events(texts)
return reply
