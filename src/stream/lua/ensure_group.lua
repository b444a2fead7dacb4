#!lua flags=allow-oom
-- KEYS[1] stream; ARGV[1] group.
-- XGROUP CREATE is refused at the memory limit unless a script allows it.
local made = redis.pcall('XGROUP', 'CREATE', KEYS[1], ARGV[1], '0', 'MKSTREAM')
if made.err then
  if string.find(made.err, 'BUSYGROUP', 1, true) then return 0 end
  return made
end
return 1
