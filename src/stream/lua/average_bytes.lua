#!lua flags=no-writes,allow-stale
-- KEYS[1] stream.
-- How large its entries are on average, as the server estimates it; 0 where there are none, -1 where this
-- user may not ask.
local entries = redis.call('XLEN', KEYS[1])
if entries == 0 then return 0 end
local bytes = redis.pcall('MEMORY', 'USAGE', KEYS[1])
if type(bytes) ~= 'number' then return -1 end
return math.ceil(bytes / entries)
