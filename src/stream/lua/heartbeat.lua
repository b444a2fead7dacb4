#!lua flags=allow-oom
-- KEYS[1] sorted set of live workers; ARGV[1] own token, ARGV[2] milliseconds to live.
-- The score is when a worker expires, by this server's own clock, so that no worker's clock matters.
-- Answers every live worker.
local time = redis.call('TIME')
local now = tonumber(time[1]) * 1000 + math.floor(tonumber(time[2]) / 1000)
redis.call('ZADD', KEYS[1], now + tonumber(ARGV[2]), ARGV[1])
redis.call('ZREMRANGEBYSCORE', KEYS[1], '-inf', now)
return redis.call('ZRANGE', KEYS[1], 0, -1)
