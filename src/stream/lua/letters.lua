#!lua flags=no-writes,allow-stale
-- KEYS[1] dead-letter stream; ARGV[1] where to begin, ARGV[2] where to end, ARGV[3] letters, at the most.
-- Of each letter: its id, the bytes of its event (-1 where there is none), and our own fields as name,
-- value, name, value. Nothing else of it: payloads can be large.
local letters = {}
for _, entry in ipairs(redis.call('XRANGE', KEYS[1], ARGV[1], ARGV[2], 'COUNT', ARGV[3])) do
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
    if fields[i] == 'event' then letter[2] = #fields[i + 1] end
    if fields[i] == 'dead:entered' then
      letter[#letter + 1] = fields[i]
      letter[#letter + 1] = fields[i + 1]
    end
  end
  for i = own, #fields do letter[#letter + 1] = fields[i] end
  letters[#letters + 1] = letter
end
return letters
