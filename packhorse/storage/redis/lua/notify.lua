-- flags: allow-oom
-- Passes a token on. ARGV[3] says how often it may still be passed on, and which process passed it.
if call('EXISTS', P .. 'bell') == 0 then call('RPUSH', P .. 'bell', ARGV[3]) end
return 1
