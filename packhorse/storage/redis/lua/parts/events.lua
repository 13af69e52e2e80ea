-- Events: one entry of the stream for up to 50 jobs of a call. An entry is a group or an array of groups; a group is the
-- columns that `rows.events_of` reads. Entries get their numbers while the call decides, so that heads can name them;
-- `write_events` writes them all. Needs the part head.
local EVENTS_AT_ONCE = 50
local last_event, entries = nil, {}

-- The number of the next entry, as heads store it.
local function next_entry()
  last_event = last_event or tonumber(call('GET', P .. 'n:event') or 0)
  return struct.pack('>I8', last_event + 1)
end

-- add_entry(stamp, count, packed): the next entry, with so many events.
local function add_entry(stamp, count, packed)
  next_entry()
  entries[#entries + 1] = { last_event + 1, stamp, packed }
  last_event = last_event + count
end

-- write_events(texts): writes the entries, and these keys and values.
local function write_events(texts)
  if #entries > 0 then
    texts = texts or {}
    texts[#texts + 1] = P .. 'n:event'
    texts[#texts + 1] = string.format('%.0f', last_event)
  end
  if texts then call_with('MSET', nil, texts) end
  for _, entry in ipairs(entries) do call('XADD', P .. 'ev', entry[1], 'a', entry[2], 'e', entry[3]) end
end
