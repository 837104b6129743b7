-- Writes the values that readers see; only correct.lua writes some of them, too. One call is atomic.
--   KEYS  1 epoch  2 changes (the feed)  3 ends (the event time by which every window ends)  4 progress  5 republish
--         6 skewed (devices whose clocks are ahead, by their last early reading)  7 rebuild  8 meta  9 absent
--   ARGV  1 the step: begin | windows | write | early | skewed | idle | progress | read_progress | mark | forget | parts | stale |
--           unmark | drop
--         2 its arguments, msgpack (service/publication/rows.py packs them)
-- Needs Redis 6.2 or later. The arguments name keys with the prefix of KEYS: in a cluster they are in the same slot. While a slot
-- moves to another node, Redis looks at KEYS alone to decide where a call may run, and `absent`, which never exists, makes it
-- refuse all of them. Else a key that has moved, or has not yet, would be missing in the middle of a call.
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
-- A term that continues where the last one ended has a.settled. Once the watermark has passed a.settled, rows of a batch after
-- progress are compared with closed values only (docs/decisions/0021-rows-that-are-not-compared.md).
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

local PREFIX = KEYS[1]:sub(1, -#'epoch' - 1)
local PER_ENTRY = 100  -- keys in one entry of the feed
local changed, newest_entry = {}, nil  -- by kind: keys that have changed and are not in the feed yet

local function announce_all(kind)
  local keys = cjson.encode(changed[kind])
  newest_entry = call('XADD', KEYS[2], '*', 'kind', kind, 'keys', keys, 'batch', a.batch, 'epoch', a.epoch)
  changed[kind] = nil
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

local MOST = 100  -- members that one ZADD adds
local entered = {}  -- by view: starts and keys of windows that are not in the view's set yet

local function enter_all(view)
  local set, keep_ms, floor = PREFIX .. 'keys:' .. view, unpack(a.views[view])
  call('ZADD', set, 'GT', unpack(entered[view]))
  if floor ~= '' then call('ZREMRANGEBYSCORE', set, '-inf', floor) end
  if keep_ms > 0 then call('PEXPIRE', set, keep_ms) end
  entered[view] = nil
end

-- Windows of a key follow each other in a batch that reads a backlog: the newest one is entered.
local function enter_window(key)
  local view, member, start = key:match('^window:([^:]*):[^:]*:(.*):(%-?%d+)$', #PREFIX + 1)
  local members = entered[view] or {}
  local n = #members
  if members[n] == member then
    if tonumber(start) > tonumber(members[n - 1]) then members[n - 1] = start end
    return
  elseif n == 2 * MOST then
    enter_all(view)
    members, n = {}, 0
  end
  members[n + 1], members[n + 2] = start, member
  entered[view] = members
end

-- Notes in progress that values of this batch are being written. `progress` and `idle` remove the note.
local function begin()
  local stored, term = call('HMGET', KEYS[4], 'epoch', 'writing'), a.epoch .. ' ' .. a.batch
  if stored[1] and stored[2] ~= term then call('HSET', KEYS[4], 'writing', term) end
  return {1}
end

-- The list of the sessions of a session's device: its key, and the session's start. The pattern begins at the key's end: without
-- `.*` Lua would try each position.
local function list_of(session)
  local device, start = session:match('^(.*):(%-?%d+)$', #PREFIX + #'session:' + 1)
  return PREFIX .. 'sessions:' .. device, start
end

-- Adds the session keys[i] to its device's list, and with it those behind it that are of the same device. Returns the number of
-- the last one. For each, up to two of the oldest that have expired are taken out, so the list stays short.
local function enter_sessions(keys, i, ttl_ms)
  local list, start = list_of(keys[i])
  local stem, pairs_of = keys[i]:sub(1, -#start - 1), {}
  local last, n = i - 1, 0
  repeat
    pairs_of[n + 1], pairs_of[n + 2] = start, start
    last, n = last + 1, n + 2
    local following = keys[last + 1]
    start = n < 2 * MOST and following and following:sub(1, #stem) == stem and following:match('^%-?%d+$', #stem + 1)
  until not start
  for _, oldest in ipairs(call('ZRANGE', list, 0, n - 1)) do
    if call('EXISTS', stem .. oldest) == 1 then break end
    call('ZREM', list, oldest)
  end
  call('ZADD', list, unpack(pairs_of))
  call('PEXPIRE', list, ttl_ms)
  return last
end

local function remove_session(key)
  local list, start = list_of(key)
  call('DEL', key)
  call('ZREM', list, start)
  announce('session', key)
end

-- Writes windows, as columns: a.keys, a.ttl (ms) and a.columns[j], the values of the field a.fields[j].
-- A window is closed by the watermark if it ends by `final` of progress. It is closed by silence if it ends by `idle` of progress
-- and its (epoch, batch) is not after that silence. Then its `revision` grows when it changes.
-- Within one batch, a window's count and end identify its content. The count never falls, whatever the epoch.
-- A window that progress calls final and that does not exist is written only with a.complete, because readers would take a part
-- of it for final. Otherwise the mark `republish` is set, so that the complete window is published. A writer that reads the topic
-- again, under the mark `rebuild`, sets that mark at its end.
-- With a.partly a value may be nil, "no such field": a statistic that the window's view does not have, or began without.
-- A window with the field `complete_from` lacks the readings before its view began. With a.complete rows replace such a window also
-- if it is closed, unless it has more readings, and the field goes. With a.last fewer readings take its place, too: the others are in
-- windows of other keys by now.
-- A new window, or one with a.again (rows are republished), enters its key into the sorted set of its view. a.views has by view: how long (ms) the set is kept after that, and
-- the start of the newest window of keys that are removed from it, '' for none.
-- With a.endless the rows are of views without windows: they do not expire and are never closed. `complete_from` is the event time
-- from which a row has all readings. A row that begins later than the stored one is of a view that was removed meanwhile, or of a
-- checkpoint whose topic has lost records. It may have fewer readings, but not while the topic is read again.
-- Returns {written, unchanged, refused as older, refused as closed}.
local function windows()
  -- A set of another program fails here, before windows are written.
  for view in pairs(a.views) do call('ZCARD', PREFIX .. 'keys:' .. view) end
  local keys, ttl, fields, columns, width = a.keys, a.ttl, a.fields, a.columns, #a.fields
  local written, unchanged, old, refused, is_lacking = 0, 0, 0, 0, false
  local column_of = {}
  for j, name in ipairs(fields) do column_of[name] = columns[j] end
  local counts, ends = column_of.count, column_of['end']

  local stored = call('HMGET', KEYS[4], 'final', 'idle', 'idle_epoch', 'idle_batch')  -- the last three are there together
  local final, idle = tonumber(stored[1] or nil) or -1, tonumber(stored[2] or nil) or -1
  local idle_epoch, idle_batch = tonumber(stored[3] or nil), tonumber(stored[4] or nil)
  local closed_until = math.max(final, idle)

  local args = {'HSET', false, 'epoch', a.epoch, 'batch', a.batch, 'updated', a.updated}
  local fixed = #args
  for j = 1, width do args[fixed + 2 * j - 1] = fields[j] end
  local last = fixed + 2 * width

  -- Puts row i into args; with a.partly, a row may lack fields. Returns the number of args.
  local function fill(i)
    if not a.partly then
      for j = 1, width do args[fixed + 2 * j] = columns[j][i] end
      return last
    end
    local n = fixed
    for j = 1, width do
      local value = columns[j][i]
      if value then
        args[n + 1], args[n + 2] = fields[j], value
        n = n + 2
      end
    end
    return n
  end

  -- Removes statistics that an earlier term wrote, or a batch before a.since, in which views lost some, and that the row, n args,
  -- lacks: they do not include its newest readings.
  local function tidy(key, n)
    local extra = call('HLEN', key) - (n / 2 - 1)
    if extra == 0 then return end
    local is_written = {revision = true}
    for j = 3, n, 2 do is_written[args[j]] = true end
    for _, name in ipairs(call('HKEYS', key)) do
      if not is_written[name] then call('HDEL', key, name) end
    end
  end

  local latest = tonumber(call('GET', KEYS[3]) or nil) or -1
  local known = latest

  for i = 1, #keys do
    local key, ends_at, must_write, revision, is_earlier = keys[i], tonumber(ends[i]), true, nil, false
    local is_part = false
    -- In a settled term nothing speaks against a window that is open: it is not compared. A value without windows may be of any term.
    if not is_settled or ends_at <= closed_until or a.endless then
      local values = call('HMGET', key, 'epoch', 'batch', 'count', 'end', 'revision')
      local its_epoch, its_batch = tonumber(values[1] or nil), tonumber(values[2] or nil) or -1
      if its_epoch then
        is_earlier = its_epoch < epoch or its_batch < (a.since or 0)
        local is_alike, its_end = values[4] == ends[i], tonumber(values[4] or nil) or -1
        local is_same = is_alike and values[3] == counts[i]
        local is_poorer = is_alike and (tonumber(values[3] or nil) or 0) > tonumber(counts[i])
        if is_poorer and a.endless and call('EXISTS', KEYS[7]) == 0 then
          local begins = tonumber(call('HGET', key, 'complete_from') or nil) or -1
          is_poorer = begins >= tonumber(column_of.complete_from[i])
        end
        local is_final, is_idle = its_end <= final, false
        is_part = a.complete and call('HEXISTS', key, 'complete_from') == 1
        if not is_final and its_end <= idle then
          is_idle = its_epoch < idle_epoch or (its_epoch == idle_epoch and its_batch <= idle_batch)
        end
        if is_older(its_epoch, its_batch) or (is_poorer and ((is_part and not a.last) or not is_final)) then
          old, must_write = old + 1, false
        elseif not is_part and is_same and (is_final or is_idle or (its_epoch == epoch and its_batch == batch)) then
          unchanged, must_write = unchanged + 1, false
          if not is_final and not a.endless then call('PEXPIRE', key, ttl[i]) end
          if a.again then enter_window(key) end
        elseif is_final and not is_part then
          refused, must_write = refused + 1, false
        elseif is_idle or is_final then
          revision = string.format('%d', (tonumber(values[5] or nil) or 0) + 1)
        end
      elseif ends_at <= final and not a.complete then
        old, must_write, is_lacking = old + 1, false, true
      end
    end
    if must_write then
      announce('window', key)
      args[2] = key
      local n = fill(i)
      local added = call(unpack(args, 1, n))
      if a.again or added == n / 2 - 1 then enter_window(key) end
      if is_earlier or is_part then tidy(key, n) end
      if revision then call('HSET', key, 'revision', revision) end
      if not a.endless then
        call('PEXPIRE', key, ttl[i])
        if ends_at > latest then latest = ends_at end
      end
      written = written + 1
    end
  end

  if is_lacking and call('EXISTS', KEYS[7]) == 0 then call('SET', KEYS[5], 'asked ' .. a.updated, 'NX') end
  if latest > known then call('SET', KEYS[3], string.format('%.0f', latest)) end
  return {written, unchanged, old, refused}
end

-- Writes sessions or devices, as columns; a value may be nil, "no such field". The stored hash keeps no other fields.
-- a.same      a row that equals the stored one in these fields, under an equal (epoch, batch), was written before
-- a.list_ttl  (ms) rows are sessions: a new one, or one with a.again (rows are republished), enters its device's list, which is
--             kept so long after that and after one is closed
-- a.content   rows are sessions. One that is closed does not change any more, unless silence alone has closed it; a row that
--             equals a closed session in these fields has the same content. `revision` begins at 0 and grows whenever a
--             closed session changes
-- a.clock     ids: rows are devices. Their `last_seen` never falls, whatever the epoch; the fields of `early` are kept until
--             it has passed them
--             A session that a device had open under an earlier epoch is removed if it is still open and the device's session
--             now begins earlier, or there is none. A writer that reads the topic again has other batches and may begin the
--             session earlier; otherwise the session's new value is written before the device
-- Returns {written, unchanged, refused as older, refused as closed, new keys of those written, closed of those written}.
local function write()
  local keys, ttl, fields, columns, content = a.keys, a.ttl, a.fields, a.columns, a.content
  local kind, epoch_text, batch_text, width = a.kind, a.epoch, a.batch, #a.fields
  local written, unchanged, old, refused, new, closed = 0, 0, 0, 0, 0, 0
  local column_of = {}
  for j, name in ipairs(fields) do column_of[name] = columns[j] end
  local compared = content and 'state' or 'last_seen'
  local state, last_seen = column_of.state, column_of.last_seen

  -- Few rows need this: a second call for them is cheaper than more fields for all.
  local function is_same(key, i)
    local stored = call('HMGET', key, unpack(a.same))
    for j, name in ipairs(a.same) do
      if (stored[j] or nil) ~= (column_of[name][i] or nil) then return false end
    end
    return true
  end

  -- Decides about a row whose stored session is closed. Returns the verdict, whether silence had closed the session, and its
  -- revision from now on. Verdicts: 'keep' (equal content), 'write', nil (refused), and 'behind': the row is an open session with
  -- fewer readings than a session that silence closed in an earlier term, so its writer may be reading the topic again. In the
  -- same term, fewer readings mean that the device's gap has become smaller and the session was split: then 'write'.
  local function judge(key, i, is_earlier)
    local stored = call('HMGET', key, 'closed_by', 'revision', unpack(content))
    local is_equal, is_idle, revision = true, stored[1] == 'idle', tonumber(stored[2] or nil) or 0
    for j, name in ipairs(content) do
      if (stored[j + 2] or nil) ~= (column_of[name][i] or nil) then is_equal = false end
    end
    if is_idle and is_equal then
      return column_of.closed_by[i] == 'watermark' and 'write' or 'keep', true, revision
    elseif is_idle then
      local is_behind = is_earlier and state[i] == 'open' and tonumber(stored[3]) > tonumber(column_of.count[i])
      return is_behind and 'behind' or 'write', true, revision + 1
    end
    return is_same(key, i) and 'keep' or nil, false, revision
  end

  local function drop(key, start)
    local session = PREFIX .. 'session:' .. key:sub(#PREFIX + #'device:' + 1) .. ':' .. start
    local values = call('HMGET', session, 'state', 'epoch')
    if values[1] == 'open' and (tonumber(values[2] or nil) or 0) < epoch then remove_session(session) end
  end

  -- In a settled term nothing speaks against a new row, an open session, or a device that this term has written.
  local mark_field, plain_mark = 'closed_by', ''
  if a.clock then mark_field, plain_mark = 'epoch', epoch_text end

  local args = {'HSET', false, 'epoch', epoch_text, 'batch', batch_text, 'updated', a.updated}
  local fixed = #args

  -- Removes what the row, in args up to n, does not have: fields of an older row, and those of early readings that the device's
  -- event time has passed. To delete every hash first costs a fifth more.
  local function tidy(key, i, n, has_revision)
    local more = call('HLEN', key) - (n / 2 - 1)
    if content and not has_revision then more = more - 1 end
    if more > 0 and a.clock then
      local names = {'early', 'early.at', 'early.ahead', 'early.until', 'skewed'}
      local values = call('HMGET', key, unpack(names))
      if values[4] and tonumber(last_seen[i]) > tonumber(values[4]) then
        call('ZREM', KEYS[6], a.clock[i])
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

  -- Sessions that are new come with others of their device that are in the list already, or new themselves.
  local last_entered = 0
  local function enter(i)
    if i > last_entered then last_entered = enter_sessions(keys, i, a.list_ttl) end
  end

  for i = 1, #keys do
    local key, must_write, revision, is_idle = keys[i], true, nil, false
    local stored, stored_epoch
    if a.again and a.list_ttl then enter(i) end
    local mark = is_settled and call('HGET', key, mark_field)
    if is_settled and (not mark or mark == plain_mark) then
      if mark then stored_epoch = epoch end
    else
      stored = call('HMGET', key, 'epoch', 'batch', compared)
      stored_epoch = tonumber(stored[1] or nil)
    end
    if stored and stored_epoch then
      local stored_batch = tonumber(stored[2] or nil) or -1
      local is_closed, verdict = content and stored[3] == 'closed', nil
      local is_poorer = last_seen and (tonumber(stored[3] or nil) or 0) > tonumber(last_seen[i])
      if is_closed then verdict, is_idle, revision = judge(key, i, stored_epoch < epoch) end
      if is_older(stored_epoch, stored_batch) or verdict == 'behind' or is_poorer then
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
      end
    end
    if must_write then
      -- The value is written last: if a command fails, the repeat finds the old value and repeats all of them.
      if a.clock and stored_epoch and stored_epoch < epoch then
        local stored_start = call('HGET', key, 'session') or nil
        local former, current_start = tonumber(stored_start), tonumber(column_of.session[i] or nil)
        if former and (not current_start or current_start < former) then drop(key, stored_start) end
      end
      -- A session that is closed has been in the list since it was new: the list's expiry alone is renewed, if the list is there.
      if a.list_ttl and not stored_epoch then
        enter(i)
      elseif a.list_ttl and state[i] == 'closed' and call('PEXPIRE', list_of(key), a.list_ttl) == 0 then
        enter(i)
      end
      announce(kind, key)
      args[2] = key
      local n = fixed
      for j = 1, width do
        local value = columns[j][i]
        if value then
          args[n + 1], args[n + 2] = fields[j], value
          n = n + 2
        end
      end
      local has_revision = content and (revision or not stored_epoch)
      if has_revision then
        args[n + 1], args[n + 2] = 'revision', tostring(revision or 0)
        n = n + 2
      end
      call(unpack(args, 1, n))
      if stored_epoch then tidy(key, i, n, has_revision) end
      call('PEXPIRE', key, ttl[i])
      written = written + 1
      if not stored_epoch then new = new + 1 end
      if state and not is_idle and state[i] == 'closed' then closed = closed + 1 end
    end
  end

  return {written, unchanged, old, refused, new, closed}
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
        call('ZADD', KEYS[6], string.format('%.0f', last), a.members[i])
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
  call('ZREMRANGEBYSCORE', KEYS[6], '-inf', '(' .. a.floor)
  return {call('ZCARD', KEYS[6])}
end

-- Notes that silence has closed all windows that end by a.watermark, which follows the clock. The feed gets an entry once for each
-- silence, and whenever windows may have ended since the last entry.
local function idle()
  local stored = call('HMGET', KEYS[4], 'epoch', 'batch', 'idle', 'final', 'idle_epoch', 'idle_batch')
  if is_older(tonumber(stored[1] or nil) or 0, tonumber(stored[2] or nil) or -1) then return {0} end
  local final, ends = tonumber(stored[4] or nil) or -1, tonumber(call('GET', KEYS[3]) or nil) or -1
  local former, line = math.max(tonumber(stored[3] or nil) or -1, final), tonumber(a.watermark)
  local is_first = stored[5] ~= a.epoch or stored[6] ~= a.batch
  if (is_first and final < ends) or (line > former and former < ends) then announce('progress', KEYS[4]) end
  call('HSET', KEYS[4], 'epoch', a.epoch, 'batch', a.batch, 'updated', a.updated,
    'idle', string.format('%.0f', math.max(line, former)), 'idle_epoch', a.epoch, 'idle_batch', a.batch)
  call('HDEL', KEYS[4], 'writing')
  return {1}
end

-- Writes progress, and a.meta if it has changed. With it, all windows that end by `final` are closed, which never falls: a writer
-- that reads the topic again has a smaller watermark than before. Returns {1, or 0 if the stored batch is newer, then the epoch
-- and the batch that were stored before, or '', then `final`}.
local function progress()
  local stored = call('HMGET', KEYS[4], 'epoch', 'batch', 'final', 'idle')
  local stored_epoch = tonumber(stored[1] or nil)
  if stored_epoch and is_older(stored_epoch, tonumber(stored[2] or nil) or -1) then
    return {0, stored[1], stored[2], stored[3] or ''}
  end
  local final = tonumber(stored[3] or nil) or -1
  if tonumber(a.watermark) > final then
    final = tonumber(a.watermark)
    announce('progress', KEYS[4])
  end
  call('HSET', KEYS[4], 'epoch', a.epoch, 'batch', a.batch, 'watermark', a.watermark, 'final', string.format('%.0f', final),
    'offsets', a.offsets, 'reference', a.reference, 'updated', a.updated)
  call('HDEL', KEYS[4], 'writing')
  if (tonumber(stored[4] or nil) or math.huge) <= final then call('HDEL', KEYS[4], 'idle', 'idle_epoch', 'idle_batch') end
  if call('GET', KEYS[8]) ~= a.meta then call('SET', KEYS[8], a.meta) end
  return {1, stored[1] or '', stored[2] or '', string.format('%.0f', final)}
end

-- Returns {epoch, batch, watermark, offsets, reference} of progress, the republish mark, the rebuild mark, meta, the event time by
-- which every window ends, and `final` of progress; '' if one is missing.
local function read_progress()
  local values = call('HMGET', KEYS[4], 'epoch', 'batch', 'watermark', 'offsets', 'reference')
  for i = 1, 5 do values[i] = values[i] or '' end
  values[6], values[7], values[8] = call('GET', KEYS[5]) or '', call('GET', KEYS[7]) or '', call('GET', KEYS[8]) or ''
  values[9], values[10] = call('GET', KEYS[3]) or '', call('HGET', KEYS[4], 'final') or ''
  return values
end

-- Sets the mark `republish` or, with a.rebuild, `rebuild`, unless another than a.former is set already. Returns {the mark}.
local function mark()
  local key = a.rebuild and KEYS[7] or KEYS[5]
  local stored = call('GET', key)
  if not stored or stored == a.former then call('SET', key, a.mark) end
  return {call('GET', key)}
end

-- Removes the mark if it is a.mark.
local function unmark()
  local key = a.rebuild and KEYS[7] or KEYS[5]
  if call('GET', key) == a.mark then call('DEL', key) end
  return {1}
end

-- Scans one page of keys of a.pattern from a.cursor on, and removes the windows for which is_wrong(key) holds. Returns {the next
-- cursor, removed}.
local function remove_windows(is_wrong)
  local page = call('SCAN', a.cursor, 'MATCH', a.pattern, 'COUNT', a.limit)
  local removed = 0
  for _, key in ipairs(page[2]) do
    if is_wrong(key) then
      call('DEL', key)
      announce('window', key)
      removed = removed + 1
    end
  end
  return {page[1], removed}
end

-- Removes windows that end by a.watermark and were not final before: after a loss of data they may lack readings, and progress is
-- about to call them final.
local function forget()
  local final = tonumber(call('HGET', KEYS[4], 'final') or nil) or -1
  return remove_windows(function(key)
    local ends = tonumber(call('HGET', key, 'end') or nil)
    return ends and ends > final and ends <= tonumber(a.watermark)
  end)
end

-- Removes windows that lack readings and begin at a.begins or later: their view is complete from there on, and their readings are
-- in windows of other keys.
local function parts()
  return remove_windows(function(key)
    local stored = call('HMGET', key, 'complete_from', 'start')
    return stored[1] and tonumber(stored[2]) >= tonumber(a.begins) and tonumber(stored[2]) < tonumber(stored[1])
  end)
end

-- Scans one page of keys of a.pattern from a.cursor on. Removes sessions that are open or closed by silence alone, were written
-- before the epoch a.before, and have their last reading before a.last (event time, '' for any): the state does not
-- have these sessions any more, because they are closed or part of others. Returns {the next cursor, removed}.
local function stale()
  local page = call('SCAN', a.cursor, 'MATCH', a.pattern, 'COUNT', a.limit)
  local removed = 0
  for _, key in ipairs(page[2]) do
    local stored = call('HMGET', key, 'state', 'epoch', 'closed_by', 'last')
    local is_over = a.last == '' or (tonumber(stored[4] or nil) or 0) < tonumber(a.last)
    if (stored[1] == 'open' or stored[3] == 'idle') and (tonumber(stored[2] or nil) or 0) < a.before and is_over then
      remove_session(key)
      removed = removed + 1
    end
  end
  return {page[1], removed}
end

-- Removes the values of a view without windows, of a.measures: those of a.limit keys from the rank a.from on. With a.whole the keys
-- leave the view's sorted set, too. Returns {keys}.
local function drop()
  local set = PREFIX .. 'keys:' .. a.view
  local members = call('ZRANGE', set, a.from, a.from + a.limit - 1)
  for _, member in ipairs(members) do
    for _, measure in ipairs(a.measures) do
      local key = PREFIX .. 'window:' .. a.view .. ':' .. measure .. ':' .. member .. ':0'
      if call('DEL', key) == 1 then announce('window', key) end
    end
    if a.whole then call('ZREM', set, member) end
  end
  return {#members}
end

local steps = {
  drop = drop,
  begin = begin, windows = windows, write = write, early = early, skewed = skewed, idle = idle, progress = progress,
  read_progress = read_progress, mark = mark, forget = forget, parts = parts, stale = stale, unmark = unmark,
}
call('XLEN', KEYS[2])  -- fails before a value is written that the feed cannot name
-- The feed and the views' sets name what a step has written, also when one of its commands has failed: a repeat finds those
-- values unchanged.
local is_done, reply = pcall(steps[ARGV[1]])
for view in pairs(entered) do enter_all(view) end
for kind in pairs(changed) do announce_all(kind) end
if newest_entry then
  call('XTRIM', KEYS[2], 'MAXLEN', '~', a.feed)
  -- An id begins with Redis' clock in ms.
  call('XTRIM', KEYS[2], 'MINID', '~', string.format('%.0f', math.max(0, tonumber(newest_entry:match('%d+')) - a.feed_ms)))
end
if not is_done then error(reply, 0) end
return reply
