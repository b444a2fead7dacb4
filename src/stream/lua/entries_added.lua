#!lua flags=no-writes,allow-stale
-- KEYS[1] stream. Answers how many entries were ever added to it.
if redis.call('EXISTS', KEYS[1]) == 0 then return 0 end
local info = redis.call('XINFO', 'STREAM', KEYS[1])
for i = 1, #info, 2 do
  if info[i] == 'entries-added' then return info[i + 1] end
end
return 0
