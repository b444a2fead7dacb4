#!lua flags=allow-oom
-- KEYS[1] owner; ARGV[1] own token. Answers 1 if the lease was ours and is given back.
if redis.call('GET', KEYS[1]) ~= ARGV[1] then return 0 end
redis.call('DEL', KEYS[1])
return 1
