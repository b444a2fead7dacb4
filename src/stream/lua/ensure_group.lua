#!lua flags=allow-oom
-- KEYS[1] stream; ARGV[1] group.
-- XGROUP CREATE is refused at the memory limit unless a script allows it. Before what is there as many
-- entries were added as are gone: with that number the server knows the group's lag, and a later gap shows.
local gone = 0
if redis.call('EXISTS', KEYS[1]) == 1 then
  for _, group in ipairs(redis.call('XINFO', 'GROUPS', KEYS[1])) do
    if group[2] == ARGV[1] then return 0 end
  end
  local info = redis.call('XINFO', 'STREAM', KEYS[1])
  for i = 1, #info, 2 do
    if info[i] == 'entries-added' then gone = gone + info[i + 1] end
    if info[i] == 'length' then gone = gone - info[i + 1] end
  end
end
local made = redis.pcall('XGROUP', 'CREATE', KEYS[1], ARGV[1], '0', 'MKSTREAM', 'ENTRIESREAD', math.max(gone, 0))
if made.err then
  if string.find(made.err, 'BUSYGROUP', 1, true) then return 0 end
  return made
end
return 1
