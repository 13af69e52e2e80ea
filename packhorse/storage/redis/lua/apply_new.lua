-- parts: notify, head, events, lines, apply
-- As apply.lua, for transactions that store new jobs: a full server refuses these.
local is_done = apply()
write_events()
return is_done and 1 or 0
