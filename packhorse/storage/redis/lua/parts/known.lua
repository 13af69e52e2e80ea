-- The worker must have joined, and not be deleted.
if not call('ZSCORE', P .. 'beats', ARGV[3]) then return 0 end
