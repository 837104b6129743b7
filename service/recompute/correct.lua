-- How a correction writes: over values that are closed, and over nothing else. What is open is the daemon's (publish.lua).
--   KEYS  1 correction (the fence)  2 changes (the feed)  3 progress  4 republish
--   ARGV  1 what to do: write | keys
--         2 its arguments, msgpack (service/recompute/correct.py packs them)
-- Returns what was done, or {-1, why nothing was}.

local call = redis.call
local a = cmsgpack.unpack(ARGV[2])

-- The fence, once per call: a correction that another one, or a replay of rejects, has overtaken writes nothing.
local newest = call('GET', KEYS[1])
if newest ~= a.number then
  return redis.error_reply('FENCED another correction or replay has begun: its number is ' .. (newest or 'gone'))
end

-- A Redis that has lost data, or gets it back at this moment, must not take a part of it from here, unless who republishes
-- writes, which a.mark says.
if (call('GET', KEYS[4]) or '') ~= a.mark then return {-1, 'values are being republished'} end
local held = call('HMGET', KEYS[3], 'epoch', 'batch')
local epoch, batch = tonumber(held[1] or nil), tonumber(held[2] or nil)
if not (epoch and batch) or epoch < a.after[1] or (epoch == a.after[1] and batch < a.after[2]) then
  return {-1, 'Redis has lost data: progress is not where it was'}
end

-- Rows of one kind, as columns, as for publish.lua. a.seal is the field that says whether a key is closed, and its value then.
-- A closed value is replaced by one of more readings, never by one of fewer: that makes a repeat harmless, and an answer that
-- comes late. Its epoch and batch stay; `revision` grows. A key that is not there gets a.epoch and a.batch and its own time to live.
-- Returns how many rows were {written, the same already, refused as poorer, open, not there any more}.
local function write()
  local written, same, poorer, open, gone = 0, 0, 0, 0, 0
  local column_of = {}
  for j, name in ipairs(a.fields) do column_of[name] = a.columns[j] end
  local state, count = column_of[a.seal[1]], column_of.count
  for i, key in ipairs(a.keys) do
    local stored = call('HMGET', key, a.seal[1], 'closed_by', 'count', 'revision', unpack(a.same))
    local is_there, is_like, merges = stored[3], true, state[i] == 'merged'
    local is_closed = stored[1] == a.seal[2] and stored[2] ~= 'idle'
    for j, name in ipairs(a.same) do
      if (stored[j + 4] or nil) ~= (column_of[name][i] or nil) then is_like = false end
    end
    if not is_there and merges then
      gone = gone + 1
    elseif is_there and not is_closed and stored[1] ~= 'merged' then
      open = open + 1
    elseif is_there and is_like and stored[1] == state[i] then
      same = same + 1
    elseif is_closed and not merges and tonumber(stored[3]) > tonumber(count[i]) then
      poorer = poorer + 1
    else
      local revision = is_there and string.format('%d', (tonumber(stored[4] or nil) or 0) + 1) or '0'
      local args, n, lacking = {'HSET', key, 'revision', revision, 'updated', a.updated}, 6, {}
      for j, name in ipairs(a.fields) do
        local value = a.columns[j][i]
        if value then
          args[n + 1], args[n + 2] = name, value
          n = n + 2
        else
          lacking[#lacking + 1] = name
        end
      end
      if not is_there then
        args[n + 1], args[n + 2], args[n + 3], args[n + 4] = 'epoch', a.epoch, 'batch', a.batch
        n = n + 4
      end
      call('XADD', KEYS[2], '*', 'kind', a.kind, 'key', key, 'batch', a.batch, 'epoch', a.epoch, 'revision', revision)
      call(unpack(args, 1, n))
      if is_there and #lacking > 0 then call('HDEL', key, unpack(lacking)) end
      if not is_there then call('PEXPIRE', key, a.ttl[i]) end
      written = written + 1
    end
  end
  if written > 0 then call('XTRIM', KEYS[2], 'MAXLEN', '~', a.feed) end
  return {written, same, poorer, open, gone}
end

-- Keys of a view that a correction has made, by last event time; the time to live of the others stays.
local function keys()
  for i, member in ipairs(a.members) do call('ZADD', a.key, 'GT', a.scores[i], member) end
  if call('PTTL', a.key) < 0 then call('PEXPIRE', a.key, a.ttl) end
  return {#a.members}
end

local steps = {write = write, keys = keys}
return steps[ARGV[1]]()
