-- notify(): wakes one waiting worker. It blocks on the list and gets the token the moment the script ends. If none waits,
-- one token stays for the next. The number is how often a worker that finds no job may pass the token on.
local function notify()
  if call('EXISTS', P .. 'bell') == 0 then call('RPUSH', P .. 'bell', '16') end
end
