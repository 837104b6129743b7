-- Writes the values that readers see; only correct.lua writes some of them, too. One call is atomic.
--   KEYS  1 epoch  2 changes (the feed)  3 open (windows not final)  4 progress  5 republish
--         6 idle (windows that silence has made final and that the watermark has not passed)
--         7 skewed (devices whose clocks are ahead, by their last early reading)  8 rebuild  9 meta
--   ARGV  1 the step: begin | write | early | skewed | keys | finish | idle | progress | read_progress | mark | forget | stale | unmark
--         2 its arguments, msgpack (service/publication/rows.py packs them)
-- Needs Redis 6.2 or later, one node: the arguments name keys, which Redis Cluster does not allow.
-- Numbers arrive as text, because Lua's own formatting keeps 14 digits of a double.

local call = redis.call
local a = cmsgpack.unpack(ARGV[2])
local epoch, batch = tonumber(a.epoch), tonumber(a.batch)

-- The fence, once per call. The epoch in each key is no fence: a stale writer wins every key that the new one has not touched.
local current = tonumber(call('GET', KEYS[1]) or nil)
if not current then
  return redis.error_reply('EPOCHLOST there is no epoch')
elseif current > epoch then
  return redis.error_reply('FENCED the epoch is ' .. current)
elseif current < epoch then
  return redis.error_reply('EPOCHLOST the epoch is ' .. current)
end

-- A Redis that has the epoch may still have lost values written under it. a.after is the {epoch, batch} that progress has
-- reached as far as the writer has seen. Every call checks it, because no step may make a stale value final.
-- With a.settled, which a term has that goes on where the last one was: once the watermark has passed it, rows of a batch after
-- progress are compared with what is stored only where that is closed (docs/decisions/0021-rows-that-are-not-compared.md).
local is_settled = false
if a.after then
  local reached = call('HMGET', KEYS[4], 'epoch', 'batch', 'watermark')
  local reached_epoch, reached_batch = tonumber(reached[1] or nil), tonumber(reached[2] or nil)
  if not (reached_epoch and reached_batch) then
    return redis.error_reply('WRITESLOST there is no progress')
  elseif reached_epoch < a.after[1] or (reached_epoch == a.after[1] and reached_batch < a.after[2]) then
    return redis.error_reply('WRITESLOST progress is at batch ' .. reached_batch .. ' of epoch ' .. reached_epoch)
  end
  local is_next = reached_epoch < epoch or (reached_epoch == epoch and reached_batch < batch)
  local watermark = tonumber(reached[3] or nil)
  is_settled = a.settled and is_next and watermark and watermark >= a.settled
end

local MOST = 1000  -- members in one variadic call: Lua's unpack() takes about 8,000 arguments

local PER_ENTRY = 100  -- keys in one entry of the feed
local changed, has_entries = {}, false  -- by kind: keys that have changed and are not in the feed yet

local function announce_all(kind)
  call('XADD', KEYS[2], '*', 'kind', kind, 'keys', cjson.encode(changed[kind]), 'batch', a.batch, 'epoch', a.epoch)
  changed[kind], has_entries = nil, true
end

local function announce(kind, key)
  local keys = changed[kind]
  if not keys then
    keys = {}
    changed[kind] = keys
  end
  keys[#keys + 1] = key
  if #keys == PER_ENTRY then announce_all(kind) end
end

local function is_older(stored_epoch, stored_batch)
  return stored_epoch > epoch or (stored_epoch == epoch and stored_batch > batch)
end

-- Notes in progress that values of this batch are being written. `progress` and `idle` remove the note.
local function begin()
  local stored, term = call('HMGET', KEYS[4], 'epoch', 'writing'), a.epoch .. ' ' .. a.batch
  if stored[1] and stored[2] ~= term then call('HSET', KEYS[4], 'writing', term) end
  return {1}
end

-- Writes rows of one kind, as columns: a.keys, a.ttl (ms) and a.columns[j], the values of the field a.fields[j].
-- a.same      a row that equals the stored one in these fields, under an equal (epoch, batch), was written before
-- a.seal      {field, value}: a key in this state does not change any more, unless silence alone has closed it
-- a.content   a row that equals a closed value in these fields has the same content. Kinds with a.content have `closed_by` and
--             a `revision`, which begins at 0 and grows whenever a closed value changes
-- a.clock     {field, members}: rows are devices. The fields of `early` are kept until event time, `field`, has passed them
-- a.rising    {field, alike}: where `alike` is equal (or not given), `field` never falls, whatever the epoch
-- a.stable    the last a.stable of a.fields are not written again where `alike` is equal
-- a.replace   a value may be nil, "no such field": the stored hash keeps no other fields. Otherwise no value is nil
-- a.drops     {n, prefix}: rows are devices. A session that a device had open under an earlier epoch is removed if it is still
--             open and the device's session now begins earlier, or there is none. A writer that reads the topic again has other
--             batches and may begin the session earlier; otherwise the session's new value is written before the device.
--             The session's key is prefix, the device's key from n on, and the start
-- a.open      scores, if the rows are windows: a new window enters the index of windows that are not final
-- Returns {written, unchanged, refused as older, refused as sealed, new keys of those written, sealed of those written}.
local function write()
  local keys, ttl, fields, columns, replace = a.keys, a.ttl, a.fields, a.columns, a.replace
  local open, seal_value, content = a.open, a.seal[2], a.content
  local kind, epoch_text, batch_text = a.kind, a.epoch, a.batch
  local written, unchanged, old, refused, new, sealed = 0, 0, 0, 0, 0, 0

  -- One HMGET per row reads the stored fields; place_of[name] is a field's place in its reply.
  local query, place_of, column_of = {'HMGET', false, 'epoch', 'batch'}, {}, {}
  for j, name in ipairs(fields) do column_of[name] = columns[j] end
  local function place(name)
    if name and not place_of[name] then
      query[#query + 1] = name
      place_of[name] = #query - 2
    end
    return place_of[name]
  end
  local seal = place(a.seal[1])
  local rising, alike = place(a.rising[1]), place(a.rising[2])
  local rising_column, alike_column = column_of[a.rising[1]], column_of[a.rising[2]]

  -- Few rows need this: a second call for them is cheaper than more fields for all.
  local function is_same(key, i)
    local stored = call('HMGET', key, unpack(a.same))
    for j, name in ipairs(a.same) do
      if (stored[j] or nil) ~= (column_of[name][i] or nil) then return false end
    end
    return true
  end

  -- Decides about a row whose stored value is closed. Returns the verdict, whether silence had closed the value, and the value's
  -- revision from now on. Verdicts: 'keep' (equal content), 'write', nil (refused), and 'behind': the row is an open session with
  -- fewer readings than a session that silence closed in an earlier term, so its writer may be reading the topic again. In the
  -- same term, fewer readings mean that the device's gap has become smaller and the session was split: then 'write'.
  local function judge(key, i, is_earlier)
    local closed = call('HMGET', key, 'closed_by', 'revision', unpack(content))
    local is_equal, is_idle, revision = true, closed[1] == 'idle', tonumber(closed[2] or nil) or 0
    for j, name in ipairs(content) do
      if (closed[j + 2] or nil) ~= (column_of[name][i] or nil) then is_equal = false end
    end
    if is_idle and is_equal then
      return column_of.closed_by[i] == 'watermark' and 'write' or 'keep', true, revision
    elseif is_idle then
      local is_behind = is_earlier and column_of.state and column_of.state[i] == 'open'
        and tonumber(closed[3]) > tonumber(column_of.count[i])
      return is_behind and 'behind' or 'write', true, revision + 1
    end
    return is_same(key, i) and 'keep' or nil, false, revision
  end

  local function drop(key, start)
    local session = a.drops[2] .. key:sub(a.drops[1] + 1) .. ':' .. start
    local values = call('HMGET', session, 'state', 'epoch')
    if values[1] == 'open' and (tonumber(values[2] or nil) or 0) < epoch then
      call('DEL', session)
      announce('session', session)
    end
  end

  -- In a settled term nothing speaks against a new row, an open value, or a device that this term has written.
  local mark_field, plain_mark = 'closed_by', ''
  if a.clock then mark_field, plain_mark = 'epoch', epoch_text end

  local args = {'HSET', false, 'epoch', epoch_text, 'batch', batch_text, 'updated', a.updated}
  local fixed, width = #args, #fields
  if not replace then
    for j = 1, width do args[fixed + 2 * j - 1] = fields[j] end
  end

  -- Removes what the row, in args up to n, does not have: fields of an older row, and those of early readings that the device's
  -- event time has passed. To delete every hash first costs a fifth more.
  local function tidy(key, i, n, has_revision)
    local more = call('HLEN', key) - (n / 2 - 1)
    if content and not has_revision then more = more - 1 end
    if more > 0 and a.clock then
      local names = {'early', 'early.at', 'early.ahead', 'early.until', 'skewed'}
      local values = call('HMGET', key, unpack(names))
      if values[4] and tonumber(column_of[a.clock[1]][i]) > tonumber(values[4]) then
        call('ZREM', KEYS[7], a.clock[2][i])
      else
        for j, name in ipairs(names) do
          if values[j] then
            args[n + 1], args[n + 2] = name, values[j]
            n, more = n + 2, more - 1
          end
        end
      end
    end
    if more > 0 then
      if content and not has_revision then
        args[n + 1], args[n + 2] = 'revision', call('HGET', key, 'revision') or '0'
        n = n + 2
      end
      call('DEL', key)
      call(unpack(args, 1, n))
    end
  end

  for i = 1, #keys do
    local key, must_write, last, revision, is_idle = keys[i], true, width, nil, false
    local stored, stored_epoch
    local mark = is_settled and call('HGET', key, mark_field)
    if is_settled and (not mark or mark == plain_mark) then
      if mark then stored_epoch, last = epoch, width - a.stable end
    else
      query[2] = key
      stored = call(unpack(query))
      stored_epoch = tonumber(stored[1] or nil)
    end
    if stored and stored_epoch then
      local stored_batch = tonumber(stored[2] or nil) or -1
      local is_alike = not alike or stored[alike] == alike_column[i]
      local is_closed, verdict = seal and stored[seal] == seal_value, nil
      local is_poorer = rising and is_alike and (tonumber(stored[rising] or nil) or 0) > tonumber(rising_column[i])
      if is_closed then
        if content then
          verdict, is_idle, revision = judge(key, i, stored_epoch < epoch)
        else
          verdict = is_same(key, i) and 'keep' or nil
        end
      end
      if is_older(stored_epoch, stored_batch) or verdict == 'behind' or (is_poorer and (is_idle or not is_closed)) then
        old, must_write = old + 1, false
      elseif is_closed then
        must_write = verdict == 'write'
        if verdict == 'keep' then unchanged = unchanged + 1 elseif not must_write then refused = refused + 1 end
        -- The state of this term has the session, too: with the new epoch, `stale` does not remove it.
        if verdict == 'keep' and is_idle and stored_epoch < epoch then
          call('HSET', key, 'epoch', epoch_text, 'batch', batch_text)
        end
      elseif stored_epoch == epoch and stored_batch == batch and is_same(key, i) then
        unchanged, must_write = unchanged + 1, false
        call('PEXPIRE', key, ttl[i])
      elseif is_alike then
        last = width - a.stable
      end
    end
    if must_write then
      -- The value is written last: if a command fails, the repeat finds the old value and repeats all of them.
      if open and last == width then call('ZADD', KEYS[3], open[i], key) end
      if is_idle then call('ZREM', KEYS[6], key) end
      if a.drops and stored_epoch and stored_epoch < epoch then
        local stored_start = call('HGET', key, 'session') or nil
        local former, current_start = tonumber(stored_start), tonumber(column_of.session[i] or nil)
        if former and (not current_start or current_start < former) then drop(key, stored_start) end
      end
      announce(kind, key)
      args[2] = key
      local n = fixed
      if replace then
        for j = 1, width do
          local value = columns[j][i]
          if value then
            args[n + 1], args[n + 2] = fields[j], value
            n = n + 2
          end
        end
      else
        for j = 1, last do
          n = n + 2
          args[n] = columns[j][i]
        end
      end
      local has_revision = content and (revision or not stored_epoch)
      if has_revision then
        args[n + 1], args[n + 2] = 'revision', tostring(revision or 0)
        n = n + 2
      end
      call(unpack(args, 1, n))
      if replace and stored_epoch then tidy(key, i, n, has_revision) end
      call('PEXPIRE', key, ttl[i])
      written = written + 1
      if not stored_epoch then new = new + 1 end
      if seal and not is_idle and column_of[a.seal[1]][i] == seal_value then sealed = sealed + 1 end
    end
  end

  return {written, unchanged, old, refused, new, sealed}
end

-- Adds early readings to devices: a.keys, a.members (ids), a.counts, and in ms a.first, a.last (the broker's times), a.ahead.
-- A device is skewed from a.threshold early readings on, each within a.within of the one before. `early` creates the device hash
-- if it does not exist. As ids can be invented, the hash expires after a.within until the device is admitted or skewed, then
-- after a.ttl.
local function early()
  for i = 1, #a.keys do
    local key, last = a.keys[i], a.last[i]
    local stored = call('HMGET', key, 'epoch', 'batch', 'early', 'early.at', 'skewed', 'last_seen')
    local is_new = not tonumber(stored[1] or nil)
    local at = tonumber(stored[4] or nil) or -1
    -- Readings that are not newer were counted before: the batch is repeated.
    if at < last and (is_new or not is_older(tonumber(stored[1]), tonumber(stored[2]))) then
      local count = a.counts[i]
      if at >= 0 and a.first[i] - at <= a.within then count = count + tonumber(stored[3]) end
      if is_new then call('HSET', key, 'status', 'offline', 'last_seen', '0', 'session', '', 'reference', '') end
      call('HSET', key, 'epoch', a.epoch, 'batch', a.batch, 'updated', a.updated, 'early', count,
        'early.at', string.format('%.0f', last), 'early.ahead', string.format('%.0f', a.ahead[i]),
        'early.until', string.format('%.0f', last + a.within))
      local is_invented = (is_new or stored[6] == '0') and count < a.threshold and not stored[5]
      call('PEXPIRE', key, is_invented and math.min(a.within, a.ttl) or a.ttl)
      if count >= a.threshold then
        call('HSET', key, 'skewed', '1')
        call('ZADD', KEYS[7], string.format('%.0f', last), a.members[i])
      end
      if is_new or (count >= a.threshold and not stored[5]) then
        announce('device', key)
      end
    end
  end
  return {#a.keys}
end

-- Returns how many devices are skewed. A device whose last early reading is older than a.floor has no hash any more.
local function skewed()
  call('ZREMRANGEBYSCORE', KEYS[7], '-inf', '(' .. a.floor)
  return {call('ZCARD', KEYS[7])}
end

-- Adds keys of a view, by last event time: a.key, a.scores, a.members, a.floor (remove those below; '' keeps all), a.ttl.
local function keys()
  for from = 1, #a.members, MOST do
    local args, n = {'ZADD', a.key, 'GT'}, 3
    for i = from, math.min(from + MOST - 1, #a.members) do
      args[n + 1], args[n + 2] = a.scores[i], a.members[i]
      n = n + 2
    end
    call(unpack(args, 1, n))
  end
  if a.floor ~= '' then call('ZREMRANGEBYSCORE', a.key, '-inf', '(' .. a.floor) end
  call('PEXPIRE', a.key, a.ttl)
  return {#a.members}
end

-- Returns the first a.limit of the windows in an index that have end <= a.watermark.
local function passed(index)
  return call('ZRANGEBYSCORE', index, '-inf', a.watermark, 'LIMIT', 0, a.limit)
end

-- Removes windows from an index. Returns how many were removed.
local function remove_due(index, due)
  for from = 1, #due, MOST do
    call('ZREM', index, unpack(due, from, math.min(from + MOST - 1, #due)))
  end
  return #due
end

-- Marks windows of an index that end by a.watermark as final, with this closed_by. Returns {looked at, marked}: a window that
-- silence had made final before is not counted as marked. The TTL does not change.
local function close(index, closed_by)
  local due = passed(index)
  local marked = 0
  for i = 1, #due do
    local key = due[i]
    local stored = call('HMGET', key, 'epoch', 'batch', 'final', 'closed_by')
    local stored_epoch = tonumber(stored[1] or nil)
    if stored_epoch and (stored[3] ~= '1' or stored[4] ~= closed_by) then
      announce('window', key)
      local is_newer = is_older(stored_epoch, tonumber(stored[2] or nil) or -1)
      call('HSET', key, 'final', '1', 'closed_by', closed_by, 'updated', a.updated,
        'epoch', is_newer and stored[1] or a.epoch, 'batch', is_newer and stored[2] or a.batch)
      if closed_by == 'idle' then call('ZADD', KEYS[6], call('ZSCORE', index, key), key) end
      if stored[3] ~= '1' then marked = marked + 1 end
    end
  end
  return {remove_due(index, due), marked}
end

-- `finish` and `idle` look at a.limit windows at most. When they have looked at fewer, none is left.
local function finish()
  local silent, open = close(KEYS[6], 'watermark'), close(KEYS[3], 'watermark')
  return {math.max(silent[1], open[1]), open[2]}
end

-- Closes windows while input is silent; a.watermark follows the clock. When all are closed, progress gets the field `idle`.
local function idle()
  local stored = call('HMGET', KEYS[4], 'epoch', 'batch')
  if is_older(tonumber(stored[1] or nil) or 0, tonumber(stored[2] or nil) or -1) then return {0, 0} end
  local counts = close(KEYS[3], 'idle')
  if counts[1] == a.limit then
    begin()
  else
    call('HSET', KEYS[4], 'epoch', a.epoch, 'batch', a.batch, 'idle', a.watermark, 'updated', a.updated)
    call('HDEL', KEYS[4], 'writing')
  end
  return counts
end

-- Writes progress, and a.meta if it has changed. Returns {1, or 0 if the stored batch is newer, then the epoch and the batch that
-- were stored before, or ''}.
local function progress()
  local stored = call('HMGET', KEYS[4], 'epoch', 'batch')
  local stored_epoch = tonumber(stored[1] or nil)
  if stored_epoch and is_older(stored_epoch, tonumber(stored[2] or nil) or -1) then
    return {0, stored[1], stored[2]}
  end
  call('HSET', KEYS[4], 'epoch', a.epoch, 'batch', a.batch, 'watermark', a.watermark, 'offsets', a.offsets,
    'reference', a.reference, 'updated', a.updated)
  call('HDEL', KEYS[4], 'idle', 'writing')
  if call('GET', KEYS[9]) ~= a.meta then call('SET', KEYS[9], a.meta) end
  return {1, stored[1] or '', stored[2] or ''}
end

-- Returns {epoch, batch, watermark, offsets, reference} of progress, the republish mark, the rebuild mark, meta, and the end of the
-- last window that the watermark has not passed; '' if one is missing.
local function read_progress()
  local values = call('HMGET', KEYS[4], 'epoch', 'batch', 'watermark', 'offsets', 'reference')
  for i = 1, 5 do values[i] = values[i] or '' end
  values[6], values[7], values[8] = call('GET', KEYS[5]) or '', call('GET', KEYS[8]) or '', call('GET', KEYS[9]) or ''
  local open, silent = call('ZREVRANGE', KEYS[3], 0, 0, 'WITHSCORES')[2], call('ZREVRANGE', KEYS[6], 0, 0, 'WITHSCORES')[2]
  values[9] = string.format('%.0f', math.max(tonumber(open or '0'), tonumber(silent or '0')))
  return values
end

-- Sets the mark `republish` or, with a.rebuild, `rebuild`, unless it is set already. Returns {the mark}.
local function mark()
  local key = a.rebuild and KEYS[8] or KEYS[5]
  call('SET', key, a.mark, 'NX')
  return {call('GET', key)}
end

-- Removes the mark if it is a.mark.
local function unmark()
  local key = a.rebuild and KEYS[8] or KEYS[5]
  if call('GET', key) == a.mark then call('DEL', key) end
  return {1}
end

-- Removes at most a.limit windows of each index that the watermark has passed: after a loss of data they may lack readings, and
-- must not become final. Returns {looked at, removed}.
local function forget()
  local looked, removed = 0, 0
  for _, index in ipairs({KEYS[3], KEYS[6]}) do
    local due, deleted = passed(index), 0
    for i = 1, #due do
      if call('DEL', due[i]) == 1 then
        announce('window', due[i])
        deleted = deleted + 1
      end
    end
    looked, removed = math.max(looked, remove_due(index, due)), removed + deleted
  end
  return {looked, removed}
end

-- Scans one page of keys of a.pattern from a.cursor on. Removes sessions that are open or closed by silence alone, were written
-- before the epoch a.before, and have their last reading before a.last (event time, '' for any): the state has no such sessions,
-- they are closed by now or part of others. Returns {the next cursor, removed}.
local function stale()
  local page = call('SCAN', a.cursor, 'MATCH', a.pattern, 'COUNT', a.limit)
  local removed = 0
  for _, key in ipairs(page[2]) do
    local stored = call('HMGET', key, 'state', 'epoch', 'closed_by', 'last')
    local is_over = a.last == '' or (tonumber(stored[4] or nil) or 0) < tonumber(a.last)
    if (stored[1] == 'open' or stored[3] == 'idle') and (tonumber(stored[2] or nil) or 0) < a.before and is_over then
      call('DEL', key)
      announce('session', key)
      removed = removed + 1
    end
  end
  return {page[1], removed}
end

local steps = {
  begin = begin, write = write, early = early, skewed = skewed, keys = keys, finish = finish, idle = idle, progress = progress,
  read_progress = read_progress, mark = mark, forget = forget, stale = stale, unmark = unmark,
}
-- The feed names what a step has changed, also when one of the step's commands has failed: a repeat finds those values unchanged.
local is_done, reply = pcall(steps[ARGV[1]])
for kind in pairs(changed) do announce_all(kind) end
if has_entries then call('XTRIM', KEYS[2], 'MAXLEN', '~', a.feed) end
if not is_done then error(reply, 0) end
return reply
