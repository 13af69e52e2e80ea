-- flags: allow-oom
-- parts: notify, head, events, lines, apply
-- Writes what a transaction wants written. Returns 0, and writes nothing, if a value that it has read has changed.
local is_done = apply()
write_events()
return is_done and 1 or 0
