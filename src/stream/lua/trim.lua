#!lua flags=allow-oom
-- KEYS[1] stream; ARGV[1] group, ARGV[2] an entry id, 0-0 for none, ARGV[3] entries, at the most.
-- Removes entries below ARGV[2] that no group on the stream needs; found and removed in one step.
-- Answers the id below which no group needs anything, the id after the last one delivered where
-- nothing is pending (0-0 without a group of ours, which would begin
-- at the start), how many were removed, whether there are more, and whether the server is nearly full.
local function pairs_of(list)
  local map = {}
  for i = 1, #list, 2 do map[list[i]] = list[i + 1] end
  return map
end
-- As text: a sequence number can have more digits than a Lua number.
local function is_less(a, b)
  if #a ~= #b then return #a < #b end
  return a < b
end
local function is_below(a, b)
  local ams, aseq = string.match(a, '^(%d+)-(%d+)$')
  local bms, bseq = string.match(b, '^(%d+)-(%d+)$')
  if ams ~= bms then return is_less(ams, bms) end
  return is_less(aseq, bseq)
end
local function after(id)
  local ms, seq = string.match(id, '^(%d+)-(%d+)$')
  -- Beyond that a Lua number skips some; then the entry itself stays.
  if #seq > 15 then return id end
  return ms .. '-' .. string.format('%d', tonumber(seq) + 1)
end
local needed, is_ours_there = nil, false
if redis.call('EXISTS', KEYS[1]) == 1 then
  for _, fields in ipairs(redis.call('XINFO', 'GROUPS', KEYS[1])) do
    local group = pairs_of(fields)
    local of_group = after(group['last-delivered-id'])
    if group['pending'] > 0 then
      local oldest = redis.call('XPENDING', KEYS[1], group['name'])[2]
      if is_below(oldest, of_group) then of_group = oldest end
    end
    if not needed or is_below(of_group, needed) then needed = of_group end
    is_ours_there = is_ours_there or group['name'] == ARGV[1]
  end
end
if not is_ours_there then needed = '0-0' end
local bound, most, removed, more = ARGV[2], tonumber(ARGV[3]), 0, 0
if is_below(needed, bound) then bound = needed end
if bound ~= '0-0' then
  -- A limit goes with whole nodes of the stream only (100 entries by default). What is left then is
  -- less than a node, unless the limit was near.
  removed = redis.call('XTRIM', KEYS[1], 'MINID', '~', bound, 'LIMIT', most)
  if removed * 2 < most then
    removed = removed + redis.call('XTRIM', KEYS[1], 'MINID', '=', bound)
  else
    more = 1
  end
end
local memory = redis.call('INFO', 'memory')
local used = tonumber(string.match(memory, '\nused_memory:(%d+)'))
local limit = tonumber(string.match(memory, '\nmaxmemory:(%d+)'))
local is_full = 0
if used and limit and limit > 0 and used > limit * 0.9 then is_full = 1 end
return { needed, removed, more, is_full }
