#!lua flags=allow-oom
-- KEYS[1] events stream; ARGV[1] group, ARGV[2] and ARGV[3] milliseconds and sequence of the last id that
-- need not come again. Sets the group back, never forward: that would skip what nobody has read.
-- Answers 1 set back, 0 it is there or before it already, -1 there is no such stream or group; and the
-- oldest id that is there.
if redis.call('EXISTS', KEYS[1]) == 0 then return { -1, '' } end
local groups = redis.call('XINFO', 'GROUPS', KEYS[1])
local oldest = redis.call('XRANGE', KEYS[1], '-', '+', 'COUNT', 1)[1]
oldest = oldest and oldest[1] or ''
-- Numbers of Lua are too coarse for ids, so that they are compared as digits.
local before = function(a, b) return #a < #b or (#a == #b and a < b) end
for _, group in ipairs(groups) do
  local about = {}
  for i = 1, #group, 2 do about[group[i]] = group[i + 1] end
  if about['name'] == ARGV[1] then
    local ms, seq = string.match(about['last-delivered-id'], '^(%d+)%-(%d+)$')
    if before(ARGV[2], ms) or (ARGV[2] == ms and before(ARGV[3], seq)) then
      redis.call('XGROUP', 'SETID', KEYS[1], ARGV[1], ARGV[2] .. '-' .. ARGV[3])
      return { 1, oldest }
    end
    return { 0, oldest }
  end
end
return { -1, oldest }
