-- Whoever reserves must have joined, and not have been struck off.
if not call('ZSCORE', P .. 'beats', ARGV[3]) then return 0 end
