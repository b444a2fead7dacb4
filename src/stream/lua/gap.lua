#!lua flags=allow-oom
-- KEYS[1] stream; ARGV[1] group, ARGV[2] how many have been told already, 0 when asking.
-- How many entries were deleted before the group had read them, as far as the server's counters can
-- tell: where nothing that is unread stands behind something that was read. Once they have been told, the
-- group's counter is put right, and its lag is what is there to be read.
-- Answers that number, the last id delivered, and the first that is there, empty for none.
local function pairs_of(list)
  local map = {}
  for i = 1, #list, 2 do map[list[i]] = list[i + 1] end
  return map
end
local none = { 0, '', '' }
if redis.call('EXISTS', KEYS[1]) == 0 then return none end
local group = nil
for _, fields in ipairs(redis.call('XINFO', 'GROUPS', KEYS[1])) do
  local candidate = pairs_of(fields)
  if candidate['name'] == ARGV[1] then group = candidate end
end
-- Without a counter nobody knows, as after XGROUP SETID.
if not group or not group['entries-read'] then return none end
local delivered = group['last-delivered-id']
local length = redis.call('XLEN', KEYS[1])
local first = ''
if length > 0 then first = redis.call('XRANGE', KEYS[1], '-', '+', 'COUNT', 1)[1][1] end
local is_behind = #redis.call('XRANGE', KEYS[1], '-', delivered, 'COUNT', 1) == 0
local is_done = #redis.call('XRANGE', KEYS[1], '(' .. delivered, '+', 'COUNT', 1) == 0
local unread = nil
if is_done then unread = 0 elseif is_behind then unread = length end
if not unread then return none end
local added = pairs_of(redis.call('XINFO', 'STREAM', KEYS[1]))['entries-added']
local missing = added - group['entries-read'] - unread
if missing <= 0 then return none end
if missing == tonumber(ARGV[2]) then
  redis.call('XGROUP', 'SETID', KEYS[1], ARGV[1], delivered, 'ENTRIESREAD', added - unread)
end
if is_done then first = '' end
return { missing, delivered, first }
