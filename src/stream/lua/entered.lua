#!lua flags=no-writes,allow-stale
-- KEYS[1] dead-letter stream; ARGV[1] where to begin, ARGV[2] entries, at the most.
-- Of each dead letter of the page: its id, and the one under which its event entered, its own where it
-- names none. Nothing else of it, and pages are short: payloads can be large.
local found = {}
for _, entry in ipairs(redis.call('XRANGE', KEYS[1], ARGV[1], '+', 'COUNT', ARGV[2])) do
  local entered = entry[1]
  for i = 1, #entry[2], 2 do
    if entry[2][i] == 'dead:source_id' and string.match(entry[2][i + 1], '^%d+%-%d+$') then
      entered = entry[2][i + 1]
    end
  end
  found[#found + 1] = { entry[1], entered }
end
return found
