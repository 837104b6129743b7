-- Writes corrections over closed values, and over nothing else. Only the daemon writes open values (publish.lua).
--   KEYS  1 correction (the fence)  2 changes (the feed)  3 progress  4 republish  5 absent (see publish.lua)
--   ARGV  1 the step: write
--         2 its arguments, msgpack (service/recompute/closed_sink.py packs them)
-- Returns the outcomes of the rows, or {-1, the reason why nothing was written}.

local call = redis.call
local PREFIX = KEYS[1]:sub(1, -#'correction' - 1)
local a = cmsgpack.unpack(ARGV[2])

-- The fence, once per call: when another correction, or a replay of rejects, has begun, this one writes nothing.
local newest = call('GET', KEYS[1])
if newest ~= a.number then
  return redis.error_reply('FENCED another correction or replay has begun: its number is ' .. (newest or 'gone'))
end

-- While Redis lacks data or values are republished, only the republish itself may write corrections: its mark is a.mark.
if (call('GET', KEYS[4]) or '') ~= a.mark then return {-1, 'values are being republished'} end
local progress = call('HMGET', KEYS[3], 'epoch', 'batch', 'final')
local epoch, batch = tonumber(progress[1] or nil), tonumber(progress[2] or nil)
if not (epoch and batch) or epoch < a.after[1] or (epoch == a.after[1] and batch < a.after[2]) then
  return {-1, 'Redis has lost data: progress is not where it was'}
end

-- Whether two texts are equal, or the same number but for rounding: a recomputation adds in another order.
local function is_alike(x, y)
  if x == y then return true end
  local m, n = tonumber(x), tonumber(y)
  return m and n and math.abs(m - n) <= 1e-9 * math.max(math.abs(m), math.abs(n))
end

-- Writes rows of one kind, as columns, as publish.lua does. Rows are the same if they are equal in the fields a.same, and in those
-- of the fields a.equal, and but for rounding of a.rounded, that both have.
-- A closed value is replaced by one with more readings, never with fewer, so a call may be repeated or arrive late. Its epoch and
-- batch stay, and `revision` grows. A key that does not exist gets a.epoch, a.batch and its TTL of a.ttl. Then a window's key enters
-- the sorted set of its view, as in publish.lua, and a session the list of its device, which is kept for a.list_ttl (ms).
-- Of the fields a.known those that a row lacks are removed.
-- Returns two numbers for each row: 1 it was written, 2 Redis had the same, 3 it is refused as poorer, 4 it is open there, 5 it was to
-- be merged and does not exist; and the revision that Redis has then.
local function write()
  local written, outcomes = false, {}
  local column_of = {}
  for j, name in ipairs(a.fields) do column_of[name] = a.columns[j] end
  local state, count, final = column_of.state, column_of.count, tonumber(progress[3] or nil) or -1
  local compared = {}
  for _, names in ipairs({a.same, a.equal, a.rounded}) do
    for _, name in ipairs(names) do compared[#compared + 1] = name end
  end
  for i, key in ipairs(a.keys) do
    local stored = call('HMGET', key, 'state', 'closed_by', 'count', 'revision', 'end', unpack(compared))
    local is_there, is_equal, merges = stored[3], true, state and state[i] == 'merged'
    local is_closed = stored[1] == 'closed' and stored[2] ~= 'idle'
    if not state then is_closed = (tonumber(stored[5] or nil) or final + 1) <= final end
    for j, name in ipairs(compared) do
      local its, new = stored[j + 5] or nil, column_of[name][i] or nil
      if j <= #a.same then
        is_equal = is_equal and its == new
      elseif its and new then
        is_equal = is_equal and (its == new or (j > #a.same + #a.equal and is_alike(its, new)))
      end
    end
    local outcome, revision = 1, tonumber(stored[4] or nil) or 0
    if not is_there and merges then
      outcome = 5
    elseif is_there and not is_closed and stored[1] ~= 'merged' then
      outcome = 4
    elseif is_there and is_equal then
      outcome = 2
    elseif is_closed and not merges and tonumber(stored[3]) > tonumber(count[i]) then
      outcome = 3
    else
      revision = is_there and revision + 1 or 0
      local text = string.format('%d', revision)
      local args, n, lacking = {'HSET', key, 'updated', a.updated}, 4, {}
      if is_there or state then
        args[n + 1], args[n + 2] = 'revision', text
        n = n + 2
      end
      for j, name in ipairs(a.fields) do
        local value = a.columns[j][i]
        if value then
          args[n + 1], args[n + 2] = name, value
          n = n + 2
        else
          lacking[#lacking + 1] = name
        end
      end
      for _, name in ipairs(a.known or {}) do
        if not column_of[name] then lacking[#lacking + 1] = name end
      end
      if not is_there then
        args[n + 1], args[n + 2], args[n + 3], args[n + 4] = 'epoch', a.epoch, 'batch', a.batch
        n = n + 4
      end
      call('XADD', KEYS[2], '*', 'kind', a.kind, 'keys', cjson.encode({key}), 'batch', a.batch, 'epoch', a.epoch, 'revision', text)
      call(unpack(args, 1, n))
      if is_there and #lacking > 0 then call('HDEL', key, unpack(lacking)) end
      if not is_there then call('PEXPIRE', key, a.ttl[i]) end
      if not is_there and a.views then
        local view, member, start = key:sub(#PREFIX + 1):match('^window:([^:]*):[^:]*:(.*):(%-?%d+)$')
        local set, keep_ms = PREFIX .. 'keys:' .. view, a.views[view][1]
        call('ZADD', set, 'GT', start, member)
        if call('PTTL', set) < 0 then call('PEXPIRE', set, keep_ms) end
      end
      if not is_there and a.list_ttl then
        local start = column_of.start[i]
        local list = PREFIX .. 'sessions:' .. key:sub(#PREFIX + #'session:' + 1, -#start - 2)
        call('ZADD', list, start, start)
        if call('PTTL', list) < 0 then call('PEXPIRE', list, a.list_ttl) end
      end
      written = true
    end
    outcomes[2 * i - 1], outcomes[2 * i] = outcome, revision
  end
  if written then call('XTRIM', KEYS[2], 'MAXLEN', '~', a.feed) end
  return outcomes
end

return write()
