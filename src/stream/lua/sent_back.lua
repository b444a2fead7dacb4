#!lua flags=allow-oom
-- KEYS[1] what was sent back, KEYS[2] events stream; ARGV[1] how many to look at, at the most.
-- Forgets what lies in the stream no more, and answers the oldest that does as its id and when it first
-- entered, in milliseconds; or how many are left to be looked at.
local members = redis.call('ZRANGE', KEYS[1], 0, ARGV[1] - 1, 'WITHSCORES')
for i = 1, #members, 2 do
  if #redis.call('XRANGE', KEYS[2], members[i], members[i]) > 0 then return { members[i], members[i + 1] } end
  redis.call('ZREM', KEYS[1], members[i])
end
return redis.call('ZCARD', KEYS[1])
