#!lua flags=allow-oom
-- KEYS[1] owner, KEYS[2] events stream; ARGV[1] own token, ARGV[2] milliseconds, ARGV[3] group.
-- Answers the number of pending entries if the lease is still ours, else -1.
-- A PEXPIRE without the comparison would prolong somebody else's lease.
if redis.call('GET', KEYS[1]) ~= ARGV[1] then return -1 end
redis.call('PEXPIRE', KEYS[1], ARGV[2])
local pending = redis.pcall('XPENDING', KEYS[2], ARGV[3])
if pending.err then return 0 end
return pending[1]
