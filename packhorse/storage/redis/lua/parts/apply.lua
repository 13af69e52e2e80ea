-- apply(): writes what `Transaction.words` has put into ARGV from `cursor` on. False: a value that the transaction has read
-- has changed, and nothing is written. The caller calls `write_events` at the end. Needs the parts head, events, lines,
-- notify.
local cursor = 3

local function word()
  cursor = cursor + 1
  return ARGV[cursor - 1]
end

local function number()
  cursor = cursor + 1
  return tonumber(ARGV[cursor - 1])
end

local function words(count)
  cursor = cursor + count
  return unpack(ARGV, cursor - count, cursor - 1)
end

-- Are all values as the transaction has read them?
local function is_unchanged()
  local keys, values = {}, {}
  for i = 1, number() do keys[i], values[i] = words(2) end
  for first = 1, #keys, 1000 do
    for i, value in ipairs(call('MGET', unpack(keys, first, math.min(first + 999, #keys)))) do
      if (value or '') ~= values[first + i - 1] then return false end
    end
  end
  for _ = 1, number() do
    local key, field, is_there, value = words(4)
    local found = call('HGET', key, field)
    if found ~= (is_there ~= '' and value) then return false end
  end
  for _ = 1, number() do
    local key, member, score = words(3)
    if (call('ZSCORE', key, member) or '') ~= score then return false end
  end
  for _ = 1, number() do
    local expected = number()
    if call(words(number())) ~= expected then return false end
  end
  return true
end

-- One more failure of a cause, with the code version or ''. A failure of another version than it was silenced for ends the
-- silence.
local function failed(key, now, version)
  call('HINCRBY', key, 'number', 1)
  local is_first = call('HSETNX', key, 'first_at', now) == 1
  if version == '' then return end
  call('HSET', key, 'last_version', version)
  if is_first then call('HSET', key, 'first_version', version) end
  local silenced = call('HGET', key, 'silenced_version')
  if silenced and silenced ~= '' and silenced ~= version then
    call('HDEL', key, 'silenced_until', 'silenced_by', 'silenced_version')
  end
end

local function apply()
  local stamp, done, next_at, entry_of, about = word(), P .. 'done:' .. word(), number(), {}, {}
  next_at = next_at + cursor
  if again and call('EXISTS', done) == 1 then
    cursor = next_at
    return true
  end
  if not is_unchanged() then return false end
  for i = 1, number() do
    local count, subject, packed = words(3)
    entry_of[i] = next_entry()
    if subject ~= '' then about[#about + 1] = { P .. 'about:' .. subject, last_event + 1 } end
    add_entry(stamp, tonumber(count), packed)
  end
  for _ = 1, number() do
    local count = number()
    if ARGV[cursor] == 'FAILED' then
      local _, key, now, version = words(count)
      failed(key, now, version)
    else
      call(words(count))
    end
  end
  for _, one in ipairs(about) do call('ZADD', one[1], one[2], one[2]) end
  local heads = {}
  for _ = 1, number() do
    local id, head, entry = words(3)
    heads[#heads + 1] = P .. 'j:' .. id
    heads[#heads + 1] = head .. (entry_of[tonumber(entry)] or '')
  end
  call_with('MSET', nil, heads)
  for _ = 1, number() do open_line(words(2)) end
  for _ = 1, number() do
    local id, finished_at, mark = words(3)
    for _, client in ipairs(call('SMEMBERS', P .. 'sub:' .. id)) do
      call('ZADD', P .. 'ready:' .. client, finished_at, mark)
    end
  end
  for _ = 1, number() do
    local id, mark = words(2)
    for _, client in ipairs(call('SMEMBERS', P .. 'sub:' .. id)) do call('ZREM', P .. 'ready:' .. client, mark) end
  end
  for _ = 1, number() do
    local id, mark, is_subscribed, entry, old = words(5)
    if is_subscribed ~= '' then
      for _, client in ipairs(call('SMEMBERS', P .. 'sub:' .. id)) do
        call('SREM', P .. 'subs:' .. client, id)
        call('ZREM', P .. 'ready:' .. client, mark)
      end
      call('DEL', P .. 'sub:' .. id)
    end
    call('DEL', P .. 'j:' .. id)
    old = old .. (entry_of[tonumber(entry)] or '')
    local last
    for position = 1, #old, 8 do
      last = string.format('%.0f', (struct.unpack('>I8', old, position)))
      call('RPUSH', P .. 'g:' .. id, last)
    end
    if last then call('ZADD', P .. 'gone', last, id) end
  end
  if word() ~= '' then notify() end
  call('SET', done, '', 'PX', 60000) -- so that a transaction that is sent again, because its reply was lost, is not written twice
  return true
end
