-- Events: one entry of the stream for up to 50 jobs of one call. An entry is a group, or an array of groups; a group is
-- the columns that `rows.events_of` reads. Numbers are given while the call decides, so that heads can name the entries;
-- `write_events` then writes them all.
local EVENTS_AT_ONCE = 50
local last_event, entries = nil, {}

-- The number of the next entry, as heads keep it.
local function next_entry()
  last_event = last_event or tonumber(call('GET', P .. 'n:event') or 0)
  return struct.pack('>I8', last_event + 1)
end

-- tell(stamp, count, packed): the next entry, which holds so many events.
local function tell(stamp, count, packed)
  next_entry()
  entries[#entries + 1] = { last_event + 1, stamp, packed }
  last_event = last_event + count
end

local function write_events()
  if #entries == 0 then return end
  call('SET', P .. 'n:event', last_event)
  for _, entry in ipairs(entries) do call('XADD', P .. 'ev', entry[1], 'a', entry[2], 'e', entry[3]) end
end
