#!lua flags=allow-oom
-- KEYS[1] events stream, KEYS[2] dead-letter stream; ARGV[1] group, ARGV[2] entry id,
-- ARGV[3...] our own fields as name, value, name, value.
-- Writes first and acknowledges after: an error of XADD ends the script before XACK.
-- Answers 1 written, 0 not pending any more, -1 the entry is gone, -2 the group is gone (made
-- again from the start it will deliver the entry anew).
local pending = redis.pcall('XPENDING', KEYS[1], ARGV[1], ARGV[2], ARGV[2], 1)
if pending.err then
  if string.find(pending.err, 'NOGROUP', 1, true) then return -2 end
  return pending
end
local found = redis.call('XRANGE', KEYS[1], ARGV[2], ARGV[2])
-- An entry that was deleted may be pending no more either: XAUTOCLAIM drops it from the list.
if #pending == 0 and #found > 0 then return 0 end
if #found == 0 then
  redis.call('XACK', KEYS[1], ARGV[1], ARGV[2])
  return -1
end
local fields = found[1][2]
-- Lua's unpack takes no more than about 8000 values; an entry with more fields keeps its first ones.
local most = 7000
if #fields > most then
  local kept = {}
  for i = 1, most do kept[i] = fields[i] end
  kept[most + 1] = 'dead:fields_left_out'
  kept[most + 2] = tostring((#fields - most) / 2)
  fields = kept
end
for i = 3, #ARGV do fields[#fields + 1] = ARGV[i] end
fields[#fields + 1] = 'dead:deliveries'
fields[#fields + 1] = tostring(pending[1][4])
redis.call('XADD', KEYS[2], '*', unpack(fields))
redis.call('XACK', KEYS[1], ARGV[1], ARGV[2])
return 1
