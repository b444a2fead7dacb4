#!lua flags=no-writes,allow-stale
-- KEYS[1] stream; ARGV[1] group, ARGV[2] an entry id.
-- Answers 1 when no entry at or below that id is undelivered or pending.
if redis.call('EXISTS', KEYS[1]) == 0 then return 1 end
local delivered = nil
for _, entry in ipairs(redis.call('XINFO', 'GROUPS', KEYS[1])) do
  local name = nil
  for i = 1, #entry, 2 do
    if entry[i] == 'name' then name = entry[i + 1] end
    if entry[i] == 'last-delivered-id' and name == ARGV[1] then delivered = entry[i + 1] end
  end
end
if not delivered then return 0 end
if #redis.call('XPENDING', KEYS[1], ARGV[1], '-', ARGV[2], 1) > 0 then return 0 end
local function parts(id)
  local ms, seq = string.match(id, '^(%d+)-(%d+)$')
  return tonumber(ms), tonumber(seq)
end
local dms, dseq = parts(delivered)
local tms, tseq = parts(ARGV[2])
if dms > tms or (dms == tms and dseq >= tseq) then return 1 end
if #redis.call('XRANGE', KEYS[1], '(' .. delivered, ARGV[2], 'COUNT', 1) > 0 then return 0 end
return 1
