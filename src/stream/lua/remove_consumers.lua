#!lua flags=allow-oom
-- KEYS[1] stream; ARGV[1] group, ARGV[2] least idle milliseconds, ARGV[3...] names of live workers.
-- Removes consumers of gone workers that hold nothing; checked and removed here in one step,
-- because XGROUP DELCONSUMER drops what a consumer still holds. Answers how many.
local live = {}
for i = 3, #ARGV do live[ARGV[i]] = true end
local consumers = redis.pcall('XINFO', 'CONSUMERS', KEYS[1], ARGV[1])
if consumers.err then return 0 end
local removed = 0
for _, fields in ipairs(consumers) do
  local consumer = {}
  for i = 1, #fields, 2 do consumer[fields[i]] = fields[i + 1] end
  if consumer['pending'] == 0 and not live[consumer['name']] and consumer['idle'] >= tonumber(ARGV[2]) then
    redis.call('XGROUP', 'DELCONSUMER', KEYS[1], ARGV[1], consumer['name'])
    removed = removed + 1
  end
end
return removed
