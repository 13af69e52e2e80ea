-- flags: allow-oom
-- parts: known, take_one, head, events, counts, take
-- Reserves jobs for one worker; see parts/take.lua. Returns 0 if the worker is unknown.
local reply, texts = take(3)
write_counts()
write_events(texts)
return reply
