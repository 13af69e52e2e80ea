-- Events: one entry of the stream for up to 50 jobs of one call. An entry is a group, or an array of groups; a group is
-- the columns that `rows.events_of` reads. Numbers are given while the call decides, so that heads can name the entries;
-- `write_events` then writes them all. Needs the part head.
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

-- write_events(texts): and these texts, key by key, if there are any.
local function write_events(texts)
  if #entries > 0 then
    texts = texts or {}
    texts[#texts + 1] = P .. 'n:event'
    texts[#texts + 1] = string.format('%.0f', last_event)
  end
  if texts then call_with('MSET', nil, texts) end
  for _, entry in ipairs(entries) do call('XADD', P .. 'ev', entry[1], 'a', entry[2], 'e', entry[3]) end
end
