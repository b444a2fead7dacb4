#!lua flags=no-writes,allow-stale
-- KEYS[1] dead-letter stream; ARGV[1] where to begin, ARGV[2] entries, at the most.
-- Of one page, the dead letter that entered first: its own id, and the one under which it entered; and
-- the last id of the page. Empty where there is none. Pages are short: payloads can be large.
local function is_less(a, b)
  -- As text: a sequence number can have more digits than a Lua number.
  if #a ~= #b then return #a < #b end
  return a < b
end
local function is_below(a, b)
  local ams, aseq = string.match(a, '^(%d+)-(%d+)$')
  local bms, bseq = string.match(b, '^(%d+)-(%d+)$')
  if ams ~= bms then return is_less(ams, bms) end
  return is_less(aseq, bseq)
end
local letter, source, last = '', '', ''
local page = redis.call('XRANGE', KEYS[1], ARGV[1], '+', 'COUNT', ARGV[2])
for _, entry in ipairs(page) do
  local entered = entry[1]
  for i = 1, #entry[2], 2 do
    if entry[2][i] == 'dead:source_id' and string.match(entry[2][i + 1], '^%d+%-%d+$') then
      entered = entry[2][i + 1]
    end
  end
  if source == '' or is_below(entered, source) then letter, source = entry[1], entered end
  last = entry[1]
end
return { letter, source, last }
