-- The head of a job (docs/decisions/0007-redis-keys.md). HOT reads it up to the result, and last returns where the tail
-- begins: created_at, priority, rank, cold, and the entries of the event stream.
--   state, flags, fence, attempts, updated_at, queued_at, started_at, owner, place, seq, result, tail
local HOT = '>c1BI4I4I8I8I8I2c0I2c0c8I4c0'
local read, write, sub = struct.unpack, struct.pack, string.sub
local stamp = write('>I8', now)
local AT_ONCE = 1000 -- words; more do not fit on Lua's stack

-- The values of these keys; false where there is none.
local function texts_at(keys)
  local count = #keys
  if count == 0 then return {} end
  if count <= AT_ONCE then return call('MGET', unpack(keys)) end
  local texts = {}
  for first = 1, count, AT_ONCE do
    for i, text in ipairs(call('MGET', unpack(keys, first, math.min(first + AT_ONCE - 1, count)))) do
      texts[first + i - 1] = text
    end
  end
  return texts
end

-- texts_of(kind, ids) -> values, keys: heads ('j:') or bodies ('b:') of jobs.
local function texts_of(kind, ids)
  local keys, start = {}, P .. kind
  for i = 1, #ids do keys[i] = start .. ids[i] end
  return texts_at(keys), keys
end

-- call(command, key, ...) with any number of words. Without a key, as MSET.
local function call_with(command, key, words)
  local count = #words
  for first = 1, count, AT_ONCE do
    local last = math.min(first + AT_ONCE - 1, count)
    if key then call(command, key, unpack(words, first, last)) else call(command, unpack(words, first, last)) end
  end
end

-- The beginning of a head up to updated_at, which is now. Most jobs of a call have the same.
local fronts = {}
local function front(state, flags, fence, attempts)
  local of_state = fronts[state]
  if not of_state then
    of_state = {}
    fronts[state] = of_state
  end
  local number = (fence * 1024 + attempts) * 16 + flags -- one for each, as long as there are few attempts
  if attempts >= 1024 then return write('>c1BI4I4', state, flags, fence, attempts) .. stamp end
  local found = of_state[number]
  if not found then
    found = write('>c1BI4I4', state, flags, fence, attempts) .. stamp
    of_state[number] = found
  end
  return found
end

-- The queue's name in a place.
local function queue_in(place)
  local length, first = string.match(place, '^(%d+):()')
  if not length then return '' end -- it cannot be read
  return sub(place, first, first + length - 1)
end

-- cold_of(tail) -> table, rest: the fields that most jobs do not have, and the entries after them.
local function cold_of(tail)
  local packed, rest = read('>I4c0', tail, 11)
  return packed == '' and {} or cmsgpack.unpack(packed), sub(tail, rest)
end

-- The tail with another cold.
local function with_cold(tail, cold, rest)
  local packed = next(cold) == nil and '' or cmsgpack.pack(cold)
  return sub(tail, 1, 10) .. write('>I4', #packed) .. packed .. rest
end
