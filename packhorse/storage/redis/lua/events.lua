-- flags: no-writes
-- Reads entries of the event stream. ARGV[3]: 'all', or those about the 'job' or the 'subject' ARGV[4]. ARGV[5]: the
-- direction. 'from': up, from the entry with event ARGV[6]; 'behind': up, after entry ARGV[6]; 'down': down, from the entry
-- with event ARGV[6]. ARGV[7]: how many.
-- Returns the event up to which all are deleted, the deleted ones after it, the last entry examined if there may be more,
-- and then number, time and content of each entry, which has at most 100 events.
local which, name, way, number, most = ARGV[3], ARGV[4], ARGV[5], tonumber(ARGV[6]), tonumber(ARGV[7])
local rises = way ~= 'down'
local stream, floor = P .. 'ev', call('GET', P .. 'floor') or '0'
if way == 'from' and number <= tonumber(floor) then number = tonumber(floor) + 1 end
local limit = string.format('%.0f', number)

local function of_all()
  if way == 'behind' then return call('XRANGE', stream, '(' .. limit, '+', 'COUNT', most) end
  local holder = call('XREVRANGE', stream, limit, '-', 'COUNT', rises and 1 or most)
  if not rises then return holder end
  return call('XRANGE', stream, holder[1] and holder[1][1] or '-', '+', 'COUNT', most)
end

-- The numbers of the entries about a subject.
local function about()
  local key = P .. 'about:' .. name
  if way == 'behind' then return call('ZRANGEBYSCORE', key, '(' .. limit, '+inf', 'LIMIT', 0, most) end
  local holder = call('ZREVRANGEBYSCORE', key, limit, '-inf', 'LIMIT', 0, rises and 1 or most)
  if not rises then return holder end
  return call('ZRANGEBYSCORE', key, holder[1] or '-inf', '+inf', 'LIMIT', 0, most)
end

-- The numbers of the entries about a job: the older ones in a list, the latest at the end of its head.
local function of_job()
  local key, latest = P .. 'g:' .. name, {}
  local head = call('MGET', P .. 'j:' .. name)[1] -- false for a key of another type
  if head then
    local fields = { pcall(struct.unpack, '>c1BI4I4I8I8I8Hc0Hc0I8I4c0I8BBI4c0', head) }
    for position = fields[1] and fields[17] or #head, #head - 7, 8 do latest[#latest + 1] = (struct.unpack('>I8', head, position)) end
  end
  local older = call('LLEN', key)
  local function entry(i)
    if i > older then return latest[i - older] end
    return tonumber(call('LINDEX', key, i - 1))
  end
  local low, high = 1, older + #latest + 1 -- the first after `number`
  while low < high do
    local middle = math.floor((low + high) / 2)
    if entry(middle) <= number then low = middle + 1 else high = middle end
  end
  local first, last = low, math.min(low + most - 1, older + #latest)
  if way == 'from' and low > 1 then first, last = low - 1, math.min(low + most - 2, older + #latest) end
  if not rises then first, last = math.max(1, low - most), low - 1 end
  local numbers = {}
  if last < first then return numbers end
  if first <= older then numbers = call('LRANGE', key, first - 1, math.min(last, older) - 1) end
  for i = math.max(first, older + 1), last do numbers[#numbers + 1] = string.format('%.0f', latest[i - older]) end
  if not rises then
    for i = 1, math.floor(#numbers / 2) do
      numbers[i], numbers[#numbers + 1 - i] = numbers[#numbers + 1 - i], numbers[i]
    end
  end
  return numbers
end

local function number_of(entry) return string.match(entry[1], '^%d+') end

local entries, last = {}, ''
if which == 'all' then
  entries = of_all()
  if #entries == most then last = number_of(entries[most]) end
else
  local numbers = which == 'job' and of_job() or about()
  if #numbers == most then last = numbers[most] end
  for _, one in ipairs(numbers) do
    local entry = call('XRANGE', stream, one, one)[1]
    if entry then entries[#entries + 1] = entry end
  end
end

local answer = {floor, {}, last}
for _, entry in ipairs(entries) do
  local size = #answer
  answer[size + 1], answer[size + 2], answer[size + 3] = number_of(entry), entry[2][2], entry[2][4]
end
if call('EXISTS', P .. 'holes') == 1 then
  for _, entry in ipairs(entries) do
    local first = tonumber(number_of(entry))
    for _, hole in ipairs(call('ZRANGEBYSCORE', P .. 'holes', first, first + 99, 'LIMIT', 0, 100)) do
      table.insert(answer[2], hole)
    end
  end
end
return answer
