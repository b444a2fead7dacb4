#!lua flags=no-writes,allow-stale
-- KEYS[1] dead-letter stream; ARGV[1] where to begin, ARGV[2] entries, at the most, ARGV[3] bytes to look at,
-- at the most, but for the last.
-- Of each dead letter of the page: its id, and the one under which its event entered first, its own where
-- it names none. Nothing else of it, and one after the other: payloads can be large.
local found, start, seen = {}, ARGV[1], 0
for _ = 1, tonumber(ARGV[2]) do
  local entry = redis.call('XRANGE', KEYS[1], start, '+', 'COUNT', 1)[1]
  if not entry then break end
  start = '(' .. entry[1]
  local named = {}
  for i = 1, #entry[2], 2 do
    local name, value = entry[2][i], entry[2][i + 1]
    seen = seen + #name + #value
    -- Milliseconds have 13 digits until the year 2286.
    if (name == 'dead:source_id' or name == 'dead:entered') and #value < 36 then
      local ms = string.match(value, '^(%d+)%-%d+$')
      if ms and #ms <= 13 then named[name] = value end
    end
  end
  -- What was sent back and died again entered before its last source.
  found[#found + 1] = { entry[1], named['dead:entered'] or named['dead:source_id'] or entry[1] }
  if seen > tonumber(ARGV[3]) then break end
end
return found
