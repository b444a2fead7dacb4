#!lua flags=allow-oom
-- KEYS[1] owner; ARGV[1] own token, ARGV[2] milliseconds. Answers 1 if the lease is ours now.
-- It may be so already, where the answer to a former call was lost.
if redis.call('SET', KEYS[1], ARGV[1], 'NX', 'PX', ARGV[2]) then return 1 end
if redis.call('GET', KEYS[1]) ~= ARGV[1] then return 0 end
redis.call('PEXPIRE', KEYS[1], ARGV[2])
return 1
