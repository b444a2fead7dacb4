#!lua flags=no-writes,allow-stale
-- KEYS[1] dead-letter stream; ARGV[1] where to begin, ARGV[2] entries, at the most.
-- Of each dead letter of the page: its id, and the one under which its event entered first, its own where
-- it names none. Nothing else of it, and pages are short: payloads can be large.
local found = {}
for _, entry in ipairs(redis.call('XRANGE', KEYS[1], ARGV[1], '+', 'COUNT', ARGV[2])) do
  local named = {}
  for i = 1, #entry[2], 2 do
    local name = entry[2][i]
    if name == 'dead:source_id' or name == 'dead:entered' then
      named[name] = string.match(entry[2][i + 1], '^%d+%-%d+$') or named[name]
    end
  end
  -- What was sent back and died again entered before its last source.
  found[#found + 1] = { entry[1], named['dead:entered'] or named['dead:source_id'] or entry[1] }
end
return found
