#!lua flags=no-writes,allow-stale
-- KEYS[1] events stream, KEYS[2] dead-letter stream, KEYS[3] owner; ARGV[1] group.
-- Answers length, last generated id, dead letters, group found, last delivered id, lag (-1: the
-- server does not know it, as after XDEL), pending, unread (1 or 0), oldest pending id, oldest dead letter's id, owner.
local function pairs_of(list)
  local map = {}
  for i = 1, #list, 2 do map[list[i]] = list[i + 1] end
  return map
end
local length, last = 0, '0-0'
local group = nil
if redis.call('EXISTS', KEYS[1]) == 1 then
  local info = pairs_of(redis.call('XINFO', 'STREAM', KEYS[1]))
  length, last = info['length'], info['last-generated-id']
  for _, entry in ipairs(redis.call('XINFO', 'GROUPS', KEYS[1])) do
    local candidate = pairs_of(entry)
    if candidate['name'] == ARGV[1] then group = candidate end
  end
end
local owner = redis.call('GET', KEYS[3])
local dead, oldest_dead = redis.call('XLEN', KEYS[2]), ''
if dead > 0 then oldest_dead = redis.call('XRANGE', KEYS[2], '-', '+', 'COUNT', 1)[1][1] end
if not group then
  local unread = 0
  if length > 0 then unread = 1 end
  return { length, last, dead, 0, '0-0', -1, 0, unread, '', oldest_dead, owner }
end
local delivered = group['last-delivered-id']
local unread = #redis.call('XRANGE', KEYS[1], '(' .. delivered, '+', 'COUNT', 1)
local oldest = ''
if group['pending'] > 0 then oldest = redis.call('XPENDING', KEYS[1], ARGV[1])[2] end
return { length, last, dead, 1, delivered, group['lag'] or -1, group['pending'], unread, oldest, oldest_dead, owner }
