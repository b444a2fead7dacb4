#!lua
-- KEYS[1] dead-letter stream, KEYS[2] events stream, KEYS[3] what was sent back; ARGV[1] id of the letter.
-- Appends the entry as it was, and removes the letter: all of it or nothing. The entry carries when its
-- event first entered, because nothing that protects against it may be pruned meanwhile.
-- Answers the new id, 0 where the letter is gone, -1 where it lacks fields that the entry had.
local found = redis.call('XRANGE', KEYS[1], ARGV[1], ARGV[1])
if #found == 0 then return 0 end
local letter = found[1][2]
local own = #letter + 1
for i = #letter - 1, 1, -2 do
  if letter[i] == 'dead:reason' then
    own = i
    break
  end
end
-- Milliseconds have 13 digits until the year 2286.
local is_id = function(text)
  local ms = #text < 36 and string.match(text, '^(%d+)%-%d+$')
  return ms and #ms <= 13 and text or nil
end
local fields, entered, source = {}, nil, nil
for i = 1, own - 1, 2 do
  if letter[i] == 'dead:fields_left_out' then return -1 end
  if letter[i] == 'dead:entered' then
    entered = is_id(letter[i + 1])
  else
    fields[#fields + 1] = letter[i]
    fields[#fields + 1] = letter[i + 1]
  end
end
for i = own, #letter, 2 do
  if letter[i] == 'dead:source_id' then source = is_id(letter[i + 1]) end
end
entered = entered or source or ARGV[1]
fields[#fields + 1] = 'dead:entered'
fields[#fields + 1] = entered
local id = redis.call('XADD', KEYS[2], '*', unpack(fields))
redis.call('ZADD', KEYS[3], string.match(entered, '^%d+'), id)
redis.call('XDEL', KEYS[1], ARGV[1])
return id
