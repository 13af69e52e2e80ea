-- flags: allow-oom
-- parts: notify, head, events, lines, apply
-- Writes what a transaction has decided; answers 0 if somebody else was quicker, and then writes nothing.
local is_done = apply()
write_events()
return is_done and 1 or 0
