-- notify(): wakes one sleeper. A sleeper blocks on the list and takes the token the moment that the script ends; where
-- nobody sleeps, one token stays for whoever lies down next. The number is how often a woken worker that finds nothing
-- for itself may pass the token on.
local function notify()
  if call('EXISTS', P .. 'bell') == 0 then call('RPUSH', P .. 'bell', '16') end
end
