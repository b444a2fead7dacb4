#!lua flags=allow-oom
-- KEYS[1] stream; ARGV[1] group, ARGV[2] own consumer name, ARGV[3...] entry id, delivery count, …
-- Sets the delivery counters of entries that are pending under our own name, and of no others.
for i = 3, #ARGV, 2 do
  local rows = redis.call('XPENDING', KEYS[1], ARGV[1], ARGV[i], ARGV[i], 1, ARGV[2])
  if #rows > 0 then
    redis.call('XCLAIM', KEYS[1], ARGV[1], ARGV[2], 0, ARGV[i], 'RETRYCOUNT', ARGV[i + 1], 'JUSTID')
  end
end
return 1
