-- Counts of one call, written once at its end: tallies (letter of state + place -> change of the number of jobs) and
-- measures (counted -> place -> amount).
local tallies, measures = {}, {}

local function tally(field, number) tallies[field] = (tallies[field] or 0) + number end

local function measure(counted, place, amount)
  local amounts = measures[counted]
  if amounts == nil then
    amounts = {}
    measures[counted] = amounts
  end
  amounts[place] = (amounts[place] or 0) + amount
end

local function write_counts()
  for field, number in pairs(tallies) do
    if number ~= 0 then call('HINCRBY', P .. 'tally', field, number) end
  end
  if next(measures) == nil then return end
  local minute = string.format('%.0f', now - now % 60000000)
  local bucket, is_new = P .. 'm:minute:' .. minute, false
  for counted, amounts in pairs(measures) do
    local total = 0
    for place, amount in pairs(amounts) do
      if call('HINCRBY', bucket, counted .. ':' .. place, amount) == amount then is_new = true end
      total = total + amount
    end
    call('HINCRBY', P .. 'total', counted, total)
  end
  if is_new then call('ZADD', P .. 'm:minute', minute, minute) end
end
