#!lua flags=allow-oom
-- KEYS[1] sorted set of live workers; ARGV[1] own token, ARGV[2] 1 to leave only if another is live.
-- Answers 1 if the worker has left.
local time = redis.call('TIME')
local now = tonumber(time[1]) * 1000 + math.floor(tonumber(time[2]) / 1000)
if ARGV[2] == '1' then
  local others = 0
  for _, worker in ipairs(redis.call('ZRANGEBYSCORE', KEYS[1], '(' .. now, '+inf')) do
    if worker ~= ARGV[1] then others = others + 1 end
  end
  if others == 0 then return 0 end
end
redis.call('ZREM', KEYS[1], ARGV[1])
return 1
