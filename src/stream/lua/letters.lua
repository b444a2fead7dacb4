#!lua flags=no-writes,allow-stale
-- KEYS[1] dead-letter stream; ARGV[1] where to begin, ARGV[2] where to end, ARGV[3] letters, at the most,
-- ARGV[4] bytes to look at, at the most, but for the last letter.
-- Answers 1 where that was all, else 0, and of each letter: its id, the bytes of its event (-1 where there
-- is none), and our own fields as name, value, name, value. Nothing else of it, and one after the other:
-- payloads can be large.
local letters, start, seen = { 0 }, ARGV[1], 0
for _ = 1, tonumber(ARGV[3]) do
  local entry = redis.call('XRANGE', KEYS[1], start, ARGV[2], 'COUNT', 1)[1]
  if not entry then
    letters[1] = 1
    break
  end
  start = '(' .. entry[1]
  local fields = entry[2]
  -- Ours come last, from the reason on; the producer's may have the same names.
  local own = #fields + 1
  for i = #fields - 1, 1, -2 do
    if fields[i] == 'dead:reason' then
      own = i
      break
    end
  end
  local letter = { entry[1], -1 }
  for i = 1, own - 1, 2 do
    seen = seen + #fields[i] + #fields[i + 1]
    if fields[i] == 'event' then letter[2] = #fields[i + 1] end
    if fields[i] == 'dead:entered' then
      letter[#letter + 1] = fields[i]
      letter[#letter + 1] = fields[i + 1]
    end
  end
  for i = own, #fields do letter[#letter + 1] = fields[i] end
  letters[#letters + 1] = letter
  if seen > tonumber(ARGV[4]) then break end
end
return letters
