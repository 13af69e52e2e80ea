-- parts: notify, head, events, lines, apply
-- As apply.lua, for transactions that store new jobs: these a full server refuses.
local is_done = apply()
write_events()
return is_done and 1 or 0
