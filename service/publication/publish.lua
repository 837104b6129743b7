-- The only code that writes what readers see, but for correct.lua. One call is atomic: nobody reads a key between two of its writes.
--   KEYS  1 epoch  2 changes (the feed)  3 open (windows not final)  4 progress  5 republish
--         6 idle (windows that are final because input is silent, and that the watermark has not passed)
--         7 skewed (devices whose clocks are ahead, by their last early reading)  8 rebuild
--   ARGV  1 what to do: write | early | skewed | keys | finish | idle | progress | held | mark | forget | stale | unmark
--         2 its arguments, msgpack (service/pipeline/batch_publisher.py packs them)
-- Runs on Redis 6.2 and later, one node; key names of rows are in the arguments, so not on Redis Cluster.
-- Numbers arrive as text: Lua's own formatting keeps 14 digits of a double.

local call = redis.call
local a = cmsgpack.unpack(ARGV[2])
local epoch, batch = tonumber(a.epoch), tonumber(a.batch)

-- The fence, once per call. A key's own epoch would be none: a stale writer wins every key the new one has not touched.
local current = tonumber(call('GET', KEYS[1]) or nil)
if not current then
  return redis.error_reply('EPOCHLOST there is no epoch')
elseif current > epoch then
  return redis.error_reply('FENCED the epoch is ' .. current)
elseif current < epoch then
  return redis.error_reply('EPOCHLOST the epoch is ' .. current)
end

-- A Redis that has the epoch may still have lost what was written under it. a.after is what progress has reached, as far
-- as the writer knows; in every call, as no value that was lost may be taken for a final one.
if a.after then
  local held = call('HMGET', KEYS[4], 'epoch', 'batch')
  local held_epoch, held_batch = tonumber(held[1] or nil), tonumber(held[2] or nil)
  if not (held_epoch and held_batch) then
    return redis.error_reply('WRITESLOST there is no progress')
  elseif held_epoch < a.after[1] or (held_epoch == a.after[1] and held_batch < a.after[2]) then
    return redis.error_reply('WRITESLOST progress is at batch ' .. held_batch .. ' of epoch ' .. held_epoch)
  end
end

local MOST = 1000  -- members in one variadic call: Lua's unpack() takes about 8,000 arguments

local function is_older(stored_epoch, stored_batch)
  return stored_epoch > epoch or (stored_epoch == epoch and stored_batch > batch)
end

-- Rows of one kind, as columns. a.keys, a.ttl (ms) and a.columns[j], the values of the field a.fields[j].
-- a.same      fields that, equal under an equal (epoch, batch), say that this row was written before
-- a.seal      {field, value}: a key in this state does not change any more, unless silence alone has closed it
-- a.content   fields that, equal, say that a closed value says the same; their kind has `closed_by` and a `revision`, which
--             begins at 0 and grows whenever a value that was closed changes
-- a.clock     {field, members}: rows are devices; what `early` wrote is taken along until `field`, event time, has passed it
-- a.rising    {field, alike}: where `alike` is equal (or there is none), `field` never falls, whatever the epoch
-- a.stable    the last a.stable of a.fields need not be written again where `alike` is equal
-- a.replace   fields may be nil, "no such field", so an older value is removed in the same step; else no value is nil
-- a.drops     {n, prefix}: rows are devices. The session that one had open last, under an earlier epoch, is removed if it still
--             stands open and its last one now begins earlier, or is none: a writer that reads the topic again cuts it in
--             other batches, and may begin it earlier at once. Else what it becomes is written before the device. Its key is
--             prefix, the device's key from n on, and its start
-- a.open      scores, when the rows are windows: a new one enters the index of what is not final
-- Returns how many rows were {written, unchanged, refused as older, refused as sealed}, and of those written how many had no
-- key before, and how many are sealed now.
local function write()
  local keys, ttl, fields, columns, replace = a.keys, a.ttl, a.fields, a.columns, a.replace
  local changes, open, seal_value = KEYS[2], a.open, a.seal[2]
  local content = a.content
  local kind, epoch_text, batch_text = a.kind, a.epoch, a.batch
  local written, unchanged, old, sealed, new, ended = 0, 0, 0, 0, 0, 0

  -- What has to be known of a stored value; wanted[name] is its place in HMGET's reply.
  local names, wanted, column_of = {'HMGET', false, 'epoch', 'batch'}, {}, {}
  for j, name in ipairs(fields) do column_of[name] = columns[j] end
  local function want(name)
    if name and not wanted[name] then
      names[#names + 1] = name
      wanted[name] = #names - 2
    end
    return wanted[name]
  end
  local seal = want(a.seal[1])
  local rising, alike = want(a.rising[1]), want(a.rising[2])
  local risen, likes = column_of[a.rising[1]], column_of[a.rising[2]]
  local same, same_columns = {}, {}
  for j, name in ipairs(a.same) do same[j], same_columns[j] = want(name), column_of[name] end
  -- HSET keeps a revision that is there; what is replaced takes it along.
  local revised = content and replace and want('revision')
  local early = a.clock and want('early')

  local function is_same(stored, i)
    for j = 1, #same do
      if (stored[same[j]] or nil) ~= (same_columns[j][i] or nil) then return false end
    end
    return true
  end

  -- What a new row does to a closed value: 'keep' (it says the same), 'write', 'behind' (it is an open session with fewer readings
  -- than silence has closed in an earlier term: its writer may read the topic again), or nil: it is refused. Then whether silence
  -- had closed it, and the revision that it has from now on. The term that had silence close a session has its readings: with fewer
  -- of them it is parted, as its device's gap has become smaller.
  local function judge(key, stored, i, is_earlier)
    local found = call('HMGET', key, 'closed_by', 'revision', unpack(content))
    local is_like, is_idle, revision = true, found[1] == 'idle', tonumber(found[2] or nil) or 0
    for j, name in ipairs(content) do
      if (found[j + 2] or nil) ~= (column_of[name][i] or nil) then is_like = false end
    end
    if is_idle and is_like then
      return column_of.closed_by[i] == 'watermark' and 'write' or 'keep', true, revision
    elseif is_idle then
      local is_behind = is_earlier and column_of.state and column_of.state[i] == 'open'
        and tonumber(found[3]) > tonumber(column_of.count[i])
      return is_behind and 'behind' or 'write', true, revision + 1
    end
    return is_same(stored, i) and 'keep' or nil, false, revision
  end

  local function drop(key, start)
    local session = a.drops[2] .. key:sub(a.drops[1] + 1) .. ':' .. start
    local found = call('HMGET', session, 'state', 'epoch')
    if found[1] == 'open' and (tonumber(found[2] or nil) or 0) < epoch then
      call('DEL', session)
      call('XADD', changes, '*', 'kind', 'session', 'key', session, 'batch', batch_text, 'epoch', epoch_text)
    end
  end

  local args = {'HSET', false, 'epoch', epoch_text, 'batch', batch_text, 'updated', a.updated}
  local fixed, width = #args, #fields
  if not replace then
    for j = 1, width do args[fixed + 2 * j - 1] = fields[j] end
  end

  for i = 1, #keys do
    local key, go, last, revision, is_idle = keys[i], true, width, nil, false
    names[2] = key
    local stored = call(unpack(names))
    local stored_epoch = tonumber(stored[1] or nil)
    if stored_epoch then
      local stored_batch = tonumber(stored[2] or nil) or -1
      local is_alike = not alike or stored[alike] == likes[i]
      local is_closed, verdict = seal and stored[seal] == seal_value, nil
      local is_poorer = rising and is_alike and (tonumber(stored[rising] or nil) or 0) > tonumber(risen[i])
      if is_closed then
        verdict = is_same(stored, i) and 'keep' or nil
        if content then verdict, is_idle, revision = judge(key, stored, i, stored_epoch < epoch) end
      end
      if is_older(stored_epoch, stored_batch) or verdict == 'behind' or (is_poorer and (is_idle or not is_closed)) then
        old, go = old + 1, false
      elseif is_closed then
        go = verdict == 'write'
        if verdict == 'keep' then unchanged = unchanged + 1 elseif not go then sealed = sealed + 1 end
        -- The state of this term has it, too: `stale` leaves it alone.
        if verdict == 'keep' and is_idle and stored_epoch < epoch then
          call('HSET', key, 'epoch', epoch_text, 'batch', batch_text)
        end
      elseif stored_epoch == epoch and stored_batch == batch and is_same(stored, i) then
        unchanged, go = unchanged + 1, false
        call('PEXPIRE', key, ttl[i])
      elseif is_alike then
        last = width - a.stable
      end
    end
    if go then
      -- The value last: should a call fail, the repeat finds the old value and does all of this again.
      if open and last == width then call('ZADD', KEYS[3], open[i], key) end
      if is_idle then call('ZREM', KEYS[6], key) end
      if a.drops and stored_epoch and stored_epoch < epoch then
        local start, now = tonumber(stored[wanted.session] or nil), tonumber(column_of.session[i] or nil)
        if start and (not now or now < start) then drop(key, stored[wanted.session]) end
      end
      call('XADD', changes, '*', 'kind', kind, 'key', key, 'batch', batch_text, 'epoch', epoch_text)
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
        if early and stored_epoch and stored[early] then
          local names = {'early', 'early.at', 'early.ahead', 'early.until', 'skewed'}
          local found = call('HMGET', key, unpack(names))
          if tonumber(column_of[a.clock[1]][i]) > tonumber(found[4]) then
            call('ZREM', KEYS[7], a.clock[2][i])
          else
            for j, name in ipairs(names) do
              if found[j] then
                args[n + 1], args[n + 2] = name, found[j]
                n = n + 2
              end
            end
          end
        end
        if stored_epoch then call('DEL', key) end
      else
        for j = 1, last do
          n = n + 2
          args[n] = columns[j][i]
        end
      end
      if revised then revision = revision or stored_epoch and stored[revised] or 0 end
      if content and (revision or not stored_epoch) then
        args[n + 1], args[n + 2] = 'revision', tostring(revision or 0)
        n = n + 2
      end
      call(unpack(args, 1, n))
      call('PEXPIRE', key, ttl[i])
      written = written + 1
      if not stored_epoch then new = new + 1 end
      if seal and not is_idle and column_of[a.seal[1]][i] == seal_value then ended = ended + 1 end
    end
  end

  if written > 0 then call('XTRIM', changes, 'MAXLEN', '~', a.feed) end
  return {written, unchanged, old, sealed, new, ended}
end

-- Early readings of devices: a.keys, a.members (their ids), and in ms a.counts, a.first, a.last (the broker's times), a.ahead.
-- A device is skewed from a.threshold of them on, each within a.within of the one before. A device without a hash gets one. It
-- lives for a.within until the device is admitted or skewed, as ids can be invented, and for a.ttl from then on.
local function early()
  local announced = 0
  for i = 1, #a.keys do
    local key, last = a.keys[i], a.last[i]
    local stored = call('HMGET', key, 'epoch', 'batch', 'early', 'early.at', 'skewed', 'last_seen')
    local is_new = not tonumber(stored[1] or nil)
    local at = tonumber(stored[4] or nil) or -1
    -- What is not newer was counted: the batch is repeated.
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
        call('XADD', KEYS[2], '*', 'kind', 'device', 'key', key, 'batch', a.batch, 'epoch', a.epoch)
        announced = announced + 1
      end
    end
  end
  if announced > 0 then call('XTRIM', KEYS[2], 'MAXLEN', '~', a.feed) end
  return {#a.keys}
end

-- How many devices are skewed; those whose last early reading is older than a.floor have no hash any more.
local function skewed()
  call('ZREMRANGEBYSCORE', KEYS[7], '-inf', '(' .. a.floor)
  return {call('ZCARD', KEYS[7])}
end

-- The keys that a view has, by last event time: a.key, a.scores, a.members, a.floor (forget below; '' keeps all), a.ttl.
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

-- The first a.limit of the windows in an index that have end <= a.watermark.
local function passed(index)
  return call('ZRANGEBYSCORE', index, '-inf', a.watermark, 'LIMIT', 0, a.limit)
end

-- Takes windows out of an index; `changed` of them were announced. Returns how many it was.
local function settled(index, due, changed)
  for from = 1, #due, MOST do
    call('ZREM', index, unpack(due, from, math.min(from + MOST - 1, #due)))
  end
  if changed > 0 then call('XTRIM', KEYS[2], 'MAXLEN', '~', a.feed) end
  return #due
end

-- Marks windows of an index that end by a.watermark final, or those that silence has made final as passed by the watermark.
-- Returns {looked at, marked}. The expiry stays that of the last reading.
local function close(index, closed_by)
  local due = passed(index)
  local marked, changed = 0, 0
  for i = 1, #due do
    local key = due[i]
    local stored = call('HMGET', key, 'epoch', 'batch', 'final', 'closed_by')
    local stored_epoch = tonumber(stored[1] or nil)
    if stored_epoch and (stored[3] ~= '1' or stored[4] ~= closed_by) then
      call('XADD', KEYS[2], '*', 'kind', 'window', 'key', key, 'batch', a.batch, 'epoch', a.epoch)
      call('HSET', key, 'final', '1', 'closed_by', closed_by, 'updated', a.updated)
      if not is_older(stored_epoch, tonumber(stored[2] or nil) or -1) then
        call('HSET', key, 'epoch', a.epoch, 'batch', a.batch)
      end
      if closed_by == 'idle' then call('ZADD', KEYS[6], call('ZSCORE', index, key), key) end
      changed = changed + 1
      if stored[3] ~= '1' then marked = marked + 1 end
    end
  end
  return {settled(index, due, changed), marked}
end

-- Each of these two looks at a.limit windows at most; all are done when fewer were looked at.
local function finish()
  local silent, open = close(KEYS[6], 'watermark'), close(KEYS[3], 'watermark')
  return {math.max(silent[1], open[1]), open[2]}
end

-- a.watermark is where the clock says that event time is, as input is silent: once all is closed, progress says so, too.
local function idle()
  local held = call('HMGET', KEYS[4], 'epoch', 'batch')
  if is_older(tonumber(held[1] or nil) or 0, tonumber(held[2] or nil) or -1) then return {0, 0} end
  local done = close(KEYS[3], 'idle')
  if done[1] < a.limit then
    call('HSET', KEYS[4], 'epoch', a.epoch, 'batch', a.batch, 'idle', a.watermark, 'updated', a.updated)
  end
  return done
end

-- Returns {1 when written and 0 when it would have gone back, the epoch and batch it held before or ''}.
local function progress()
  local stored = call('HMGET', KEYS[4], 'epoch', 'batch')
  local stored_epoch = tonumber(stored[1] or nil)
  if stored_epoch and is_older(stored_epoch, tonumber(stored[2] or nil) or -1) then
    return {0, stored[1], stored[2]}
  end
  call('HSET', KEYS[4], 'epoch', a.epoch, 'batch', a.batch, 'watermark', a.watermark, 'offsets', a.offsets,
    'reference', a.reference, 'updated', a.updated)
  call('HDEL', KEYS[4], 'idle')
  return {1, stored[1] or '', stored[2] or ''}
end

-- What progress holds: {epoch, batch, watermark, offsets, reference}, and the marks republish and rebuild; '' for what is lacking.
local function held()
  local found = call('HMGET', KEYS[4], 'epoch', 'batch', 'watermark', 'offsets', 'reference')
  for i = 1, 5 do found[i] = found[i] or '' end
  found[6], found[7] = call('GET', KEYS[5]) or '', call('GET', KEYS[8]) or ''
  return found
end

-- Sets a mark: `republish` or, with a.rebuild, `rebuild`. One that is there stays. Returns {the mark that is there}.
local function mark()
  local key = a.rebuild and KEYS[8] or KEYS[5]
  call('SET', key, a.mark, 'NX')
  return {call('GET', key)}
end

-- Takes the mark away, unless it is a newer one than a.mark.
local function unmark()
  local key = a.rebuild and KEYS[8] or KEYS[5]
  if call('GET', key) == a.mark then call('DEL', key) end
  return {1}
end

-- Removes at most a.limit windows of each index that the watermark has passed and that it has not marked final: after a loss
-- of data they may lack readings, and would be marked final as they are. Returns {looked at, removed}.
local function forget()
  local looked, removed = 0, 0
  for _, index in ipairs({KEYS[3], KEYS[6]}) do
    local due, gone = passed(index), 0
    for i = 1, #due do
      if call('DEL', due[i]) == 1 then
        call('XADD', KEYS[2], '*', 'kind', 'window', 'key', due[i], 'batch', a.batch, 'epoch', a.epoch)
        gone = gone + 1
      end
    end
    looked, removed = math.max(looked, settled(index, due, gone)), removed + gone
  end
  return {looked, removed}
end

-- Removes sessions that are open, or closed by silence alone, were written before the epoch a.before, and ended before a.last
-- (event time, '' for any), among some keys of a.pattern from a.cursor on. The state does not have them: they are part of others
-- or closed by now. Returns {the next cursor, removed}.
local function stale()
  local page = call('SCAN', a.cursor, 'MATCH', a.pattern, 'COUNT', a.limit)
  local removed = 0
  for _, key in ipairs(page[2]) do
    local stored = call('HMGET', key, 'state', 'epoch', 'closed_by', 'last')
    local is_over = a.last == '' or (tonumber(stored[4] or nil) or 0) < tonumber(a.last)
    if (stored[1] == 'open' or stored[3] == 'idle') and (tonumber(stored[2] or nil) or 0) < a.before and is_over then
      call('DEL', key)
      call('XADD', KEYS[2], '*', 'kind', 'session', 'key', key, 'batch', a.batch, 'epoch', a.epoch)
      removed = removed + 1
    end
  end
  if removed > 0 then call('XTRIM', KEYS[2], 'MAXLEN', '~', a.feed) end
  return {page[1], removed}
end

local steps = {
  write = write, early = early, skewed = skewed, keys = keys, finish = finish, idle = idle, progress = progress,
  held = held, mark = mark, forget = forget, stale = stale, unmark = unmark,
}
return steps[ARGV[1]]()
