#!lua flags=allow-oom
-- KEYS[1] topology hash; ARGV name, value, name, value: what to set where nothing is set yet.
-- Answers the values in force, in the order of the names.
local out = {}
for i = 1, #ARGV, 2 do
  redis.call('HSETNX', KEYS[1], ARGV[i], ARGV[i + 1])
  out[#out + 1] = redis.call('HGET', KEYS[1], ARGV[i])
end
return out
