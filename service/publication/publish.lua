-- Writes the values that readers see. One call is atomic.
--   KEYS  1 epoch  2 changes (the feed)  3 ends (the event time by which every window ends)  4 progress  5 republish
--         6 skewed (devices whose clocks are ahead, by their last early reading)  7 rebuild  8 meta  9 absent
--         10 correction (the fence of corrections)
--   ARGV  1 the step: begin | write | early | skewed | idle | written | progress | read_progress | mark | forget | parts |
--           stale | unmark | drop | expect | expected | unexpect
--         2 its arguments, msgpack (service/publication/rows.py packs them)
-- Needs Redis 6.2 or later. The arguments name keys with the prefix of KEYS: in a cluster they are in the same slot. While a slot
-- moves to another node, Redis looks at KEYS alone to decide where a call may run, and `absent`, which never exists, makes it
-- refuse all of them. Else a key that has moved, or has not yet, would be missing in the middle of a call.
-- Numbers arrive as text, because Lua's own formatting keeps 14 digits of a double.

local call = redis.call
local a = cmsgpack.unpack(ARGV[2])
local epoch, batch = tonumber(a.epoch), tonumber(a.batch)

-- The fence, once per call. The epoch in each key is no fence: a stale writer wins every key that the new one has not touched.
-- A correction, beside the writer of the epoch, has a.number: when another correction, or a replay of rejects, has begun, it writes
-- nothing. While values are republished, only the republish itself may write corrections: its mark is a.mark.
if a.number then
  local newest = call('GET', KEYS[10])
  if newest ~= a.number then
    return redis.error_reply('FENCED another correction or replay has begun: its number is ' .. (newest or 'gone'))
  elseif (call('GET', KEYS[5]) or '') ~= a.mark then
    return redis.error_reply('REFUSED values are being republished')
  end
else
  local current = tonumber(call('GET', KEYS[1]) or nil)
  if not current then
    return redis.error_reply('EPOCHLOST there is no epoch')
  elseif current > epoch then
    return redis.error_reply('FENCED the epoch is ' .. current)
  elseif current < epoch then
    return redis.error_reply('EPOCHLOST the epoch is ' .. current)
  end
end

-- A Redis that has the epoch may still have lost values written under it. a.after is the {epoch, batch} that progress has
-- reached as far as the writer has seen. Every call checks it, because no step may make a stale value final.
-- A term that continues where the last one ended has a.settled. Once the watermark has passed a.settled, rows of a batch after
-- progress are compared with closed values only (docs/decisions/0021-rows-that-are-not-compared.md).
local is_settled = false
if a.after then
  local reached = call('HMGET', KEYS[4], 'epoch', 'batch', 'watermark')
  local reached_epoch, reached_batch = tonumber(reached[1] or nil), tonumber(reached[2] or nil)
  local lost = a.number and 'REFUSED Redis has lost data: ' or 'WRITESLOST '
  if not (reached_epoch and reached_batch) then
    return redis.error_reply(lost .. 'there is no progress')
  elseif reached_epoch < a.after[1] or (reached_epoch == a.after[1] and reached_batch < a.after[2]) then
    return redis.error_reply(lost .. 'progress is at batch ' .. reached_batch .. ' of epoch ' .. reached_epoch)
  end
  local is_next = reached_epoch < epoch or (reached_epoch == epoch and reached_batch < batch)
  local watermark = tonumber(reached[3] or nil)
  is_settled = a.settled and is_next and watermark and watermark >= a.settled
end

local PREFIX = KEYS[1]:sub(1, -#'epoch' - 1)
local NEVER = PREFIX .. 'never'  -- devices of the reference without a reading, by when they were listed; 0: it has come since
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

local function announce_correction(key, revision)
  local names, text = cjson.encode({key}), string.format('%d', revision)
  newest_entry = call('XADD', KEYS[2], '*', 'kind', a.kind, 'keys', names, 'batch', a.batch, 'epoch', a.epoch, 'revision', text)
end

local function is_older(stored_epoch, stored_batch)
  return stored_epoch > epoch or (stored_epoch == epoch and stored_batch > batch)
end

-- Lua 5.1 unpacks at most 8000 values: a session of many measures has more fields, which take several commands.
local MOST_UNPACKED = 7000

-- Returns the values of fields of a hash, as HMGET does.
local function fields_of(key, names)
  if #names <= MOST_UNPACKED then return call('HMGET', key, unpack(names)) end
  local values = {}
  for i = 1, #names, MOST_UNPACKED do
    local some = call('HMGET', key, unpack(names, i, math.min(i + MOST_UNPACKED - 1, #names)))
    for _, value in ipairs(some) do values[#values + 1] = value end
  end
  return values
end

-- Calls HSET with the first n of args, which begin with its name and the key. Returns how many fields are new.
local function set_fields(args, n)
  if n <= MOST_UNPACKED then return call(unpack(args, 1, n)) end
  local added = 0
  for i = 3, n, MOST_UNPACKED do
    added = added + call('HSET', args[2], unpack(args, i, math.min(i + MOST_UNPACKED - 1, n)))
  end
  return added
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

-- Whether two texts are equal, or the same number but for rounding: a recomputation adds in another order.
local function is_alike(x, y)
  if x == y then return true end
  local m, n = tonumber(x), tonumber(y)
  return m and n and math.abs(m - n) <= 1e-9 * math.max(math.abs(m), math.abs(n))
end

-- Decides whether a row may replace the stored value of its key. tests/verdicts.yaml has its cases. Returns
--   keep    the stored value has what the row has, or a merged session that does not exist is corrected
--   write   the row takes its place
--   revise  the row takes the place of a closed value, and `revision` grows
--   older   the row is behind the stored value, or has less, or it may be a part of a final window that does not exist
--   closed  the value does not change any more; a correction changes only values that the watermark has closed
-- stored  nil, or its epoch, batch, amount (readings; of a device the time of its last one), and phase: open, idle (silence alone
--         has closed it), settled (it has left, and readings still count) or final; of windows also ends (text), begins and
--         is_part: it lacks the readings before its view began
-- row     its amount; of windows ends (a number), ends_text, and begins if they have no end; of sessions state and closed_by;
--         is_same(row, phase) compares it with the stored value, which few rows need
-- clock   epoch and batch of the writer, final, is_rebuilding(), and what the writer may do:
--         corrects  its rows are corrections of closed values: it does not count who wrote the stored one
--         complete  its rows have all readings, also those that Redis has lost, and those before their view began
--         last      there are no more readings of these than the row's: others are in windows of other keys by now
--         behind    its rows are open windows of roll-ups, which lack readings of open windows. A value that silence has closed
--                   has these
-- In a batch, count and end tell the content of a window. A window's count and a device's time never fall, whatever the epoch,
-- unless a window without end begins later: its view was removed meanwhile, or the topic has lost records. An open session has
-- fewer readings than one that silence closed in an earlier term if its writer reads the topic again; in the same term the
-- device's gap has become smaller, and the session was split.
local function verdict(stored, row, clock)
  if not stored then
    if clock.corrects then return row.state == 'merged' and 'keep' or 'write' end
    return row.ends and row.ends <= clock.final and not clock.complete and 'older' or 'write'
  end
  local phase, is_part, is_poorer = stored.phase, stored.is_part, stored.amount > row.amount
  if clock.corrects then
    local is_merged = stored.state == 'merged'
    if phase ~= 'final' and not is_merged then return 'closed' end
    if row:is_same(phase) then return 'keep' end
    return is_poorer and not is_merged and row.state ~= 'merged' and 'older' or 'revise'
  end
  if clock.behind and phase == 'idle' then return 'keep' end
  if is_poorer and row.ends then
    is_poorer = stored.ends == row.ends_text and (phase ~= 'final' or (is_part and not clock.last))
    if is_poorer and row.begins and stored.begins < row.begins then is_poorer = clock.is_rebuilding() end
  elseif is_poorer and row.state then
    is_poorer = phase == 'idle' and stored.epoch < clock.epoch and row.state == 'open'
  end
  if is_poorer or is_older(stored.epoch, stored.batch) then return 'older' end
  local is_repeat = stored.epoch == clock.epoch and stored.batch == clock.batch
  if not is_part and (phase ~= 'open' or is_repeat) and row:is_same(phase) then
    return phase == 'idle' and row.closed_by == 'watermark' and 'write' or 'keep'
  elseif phase == 'open' then
    return 'write'
  end
  return (phase ~= 'final' or is_part) and 'revise' or 'closed'
end

-- Writes rows of one kind, as columns: a.keys, a.ttl (ms) and a.columns[j], the values of the field a.fields[j]; a value may be nil,
-- "no such field", of windows only with a.partly.
-- a.same       rows are the same if they are equal in these fields, in those of the fields a.equal that both have, and but for
--              rounding in those of a.rounded
-- a.again      rows are republished: those that exist are entered, as new ones are
-- a.views      rows are windows. By view: how long (ms) its sorted set of keys is kept after one is entered, and the start of the
--              newest window of keys that are removed from it, '' for none
-- a.since      the batch from which on views have lost no statistic
-- a.endless    views have no windows: rows do not expire and are never closed. Their `complete_from` is the event time from which
--              they have all readings
-- a.list_ttl   (ms) rows are sessions: one that is entered is so in its device's list, which is kept so long after that and after
--              one is closed
-- a.clock      ids: rows are devices. The fields of `early` are kept until `last_seen` has passed them
-- a.number     rows are corrections: see `verdict` for this and for a.complete, a.last and a.behind. Epoch, batch and TTL of a value stay
-- A window is closed by the watermark if it ends by `final` of progress. It is settled if it ends by the time that `settled` of
-- progress has of its view. It is closed by silence if it ends by `idle` of progress and its (epoch, batch) is not after that
-- silence. If a window is final and may not be written as it does not exist, the mark `republish` is set, so that the complete
-- window is published. A writer that reads the topic again, under the mark `rebuild`, sets that mark at its end.
-- A session that a device had open under an earlier epoch is removed if it is still open and the device's session now begins
-- earlier, or there is none. A writer that reads the topic again has other batches and may begin the session earlier; otherwise
-- the session's new value is written before the device.
-- Returns {written, unchanged, refused as older, refused as closed, new keys of those written, closed of those written}, and of
-- corrections the verdict of each row, and the revision that Redis has then.
local function write()
  local keys, ttl, fields, columns, width = a.keys, a.ttl, a.fields, a.columns, #a.fields
  local kind, corrects, again, endless, devices = a.kind, a.number, a.again, a.endless, a.clock
  local list_ttl, since, outcomes = a.list_ttl, a.since or 0, {}
  local written, unchanged, old, refused, new, closed, is_lacking = 0, 0, 0, 0, 0, 0, false
  local column_of = {}
  for j, name in ipairs(fields) do column_of[name] = columns[j] end
  -- By kind: a measure, which is a field of a device, may have any of these names.
  local ends, state = kind == 'window' and column_of['end'], kind == 'session' and column_of.state
  local begins, amounts = endless and column_of.complete_from, column_of[devices and 'last_seen' or 'count']

  local clock = {epoch = epoch, batch = batch, final = -1, corrects = corrects, complete = a.complete, last = a.last,
    behind = a.behind}
  function clock.is_rebuilding() return call('EXISTS', KEYS[7]) == 1 end
  local idle, idle_epoch, idle_batch, settled = -1, nil, nil, nil
  if ends then
    -- A set of another program fails here, before windows are written.
    for view in pairs(a.views) do call('ZCARD', PREFIX .. 'keys:' .. view) end
    -- Those of `idle` are there together.
    local stored = call('HMGET', KEYS[4], 'final', 'idle', 'idle_epoch', 'idle_batch', 'settled')
    settled = stored[5] and cjson.decode(stored[5])
    clock.final, idle = tonumber(stored[1] or nil) or -1, tonumber(stored[2] or nil) or -1
    idle_epoch, idle_batch = tonumber(stored[3] or nil), tonumber(stored[4] or nil)
  end
  local closed_until = math.max(clock.final, idle)
  for _, line in pairs(settled or {}) do closed_until = math.max(closed_until, line) end
  local latest = ends and tonumber(call('GET', KEYS[3]) or nil) or -1
  local known = latest

  -- A field more costs a walk through the hash: only those are read that decide about most rows.
  local names = {'epoch', 'batch', devices and 'last_seen' or 'count'}
  if ends or state then names[4] = ends and 'end' or 'closed_by' end
  if a.complete or endless or corrects then names[5], names[6] = ends and 'complete_from' or 'state', 'revision' end
  local stored_value = {}

  local function read(key)
    local values, stored = call('HMGET', key, unpack(names)), stored_value
    stored.epoch, stored.batch = tonumber(values[1] or nil), tonumber(values[2] or nil) or -1
    if not stored.epoch then return nil end
    stored.amount, stored.phase = tonumber(values[3] or nil) or 0, 'open'
    if corrects then stored.revision = tonumber(values[6] or nil) or 0 end
    if ends then
      local its_end = tonumber(values[4] or nil) or -1
      stored.ends, stored.begins, stored.is_part = values[4], tonumber(values[5] or nil) or -1, a.complete and values[5]
      if its_end <= clock.final then
        stored.phase = 'final'
      elseif settled and its_end <= (settled[key:match('^window:([^:]*)', #PREFIX + 1)] or -1) then
        stored.phase = 'settled'
      elseif its_end <= idle and (stored.epoch < idle_epoch or (stored.epoch == idle_epoch and stored.batch <= idle_batch)) then
        stored.phase = 'idle'
      end
    elseif state then
      stored.state = values[5]
      if values[4] and values[4] ~= '' then stored.phase = values[4] == 'idle' and 'idle' or 'final' end
    end
    return stored
  end

  local compared, exact = {}, #a.same + #(a.equal or {})
  for _, some in ipairs({a.same, a.equal or {}, a.rounded or {}}) do
    for _, name in ipairs(some) do compared[#compared + 1] = name end
  end
  local row = {}

  function row.is_same(self, phase)
    local stored, i = fields_of(self.key, compared), self.number
    for j, name in ipairs(compared) do
      local its, new = stored[j] or nil, column_of[name][i] or nil
      if j <= #a.same then
        -- An open session with the readings of one that silence has closed stays closed.
        if its ~= new and not (phase == 'idle' and name == 'state' and new == 'open') then return false end
      elseif its and new and its ~= new and not (j > exact and is_alike(its, new)) then
        return false
      end
    end
    return true
  end

  -- In a settled term nothing speaks against a row if its window or the stored session is open, if it is new, or if this term has
  -- written its device: it is not compared. A value without windows may be of any term.
  local mark_field, plain_mark = 'closed_by', ''
  if devices then mark_field, plain_mark = 'epoch', a.epoch end

  -- Sessions that are new come with others of their device that are in the list already, or new themselves.
  local last_entered = 0
  local function enter(i)
    if ends then
      enter_window(keys[i])
    elseif corrects then
      enter_sessions({keys[i]}, 1, list_ttl)
    elseif state and i > last_entered then
      last_entered = enter_sessions(keys, i, list_ttl)
    end
  end

  local function drop(key, start)
    local session = PREFIX .. 'session:' .. key:sub(#PREFIX + #'device:' + 1) .. ':' .. start
    local values = call('HMGET', session, 'state', 'epoch')
    if values[1] == 'open' and (tonumber(values[2] or nil) or 0) < epoch then remove_session(session) end
  end

  local args = {'HSET', false, 'epoch', a.epoch, 'batch', a.batch, 'updated', a.updated}
  local fixed = #args
  for j = 1, width do args[fixed + 2 * j - 1] = fields[j] end
  local is_partly = not ends or a.partly

  -- Removes the fields that the row, n args, lacks; `others` are known to be among them and stay.
  local function tidy(key, i, n, others)
    if call('HLEN', key) - (n / 2 - 1) == others then return end
    local stays = {revision = true, complete_from = corrects}
    for j = 3, n, 2 do stays[args[j]] = true end
    if devices then
      local until_ms = call('HGET', key, 'early.until')
      local has_passed = until_ms and tonumber(amounts[i]) > tonumber(until_ms)
      if has_passed then call('ZREM', KEYS[6], devices[i]) end
      for _, name in ipairs({'early', 'early.at', 'early.ahead', 'early.until', 'skewed'}) do stays[name] = not has_passed end
    end
    for _, name in ipairs(call('HKEYS', key)) do
      if not stays[name] then call('HDEL', key, name) end
    end
  end

  for i = 1, #keys do
    local key, must_compare, must_write = keys[i], not is_settled, true
    local stored, is_there, revision, is_idle
    local ends_at = ends and tonumber(ends[i])
    if is_settled and ends_at then
      must_compare = endless or ends_at <= closed_until
    elseif is_settled then
      is_there = call('HGET', key, mark_field)
      must_compare = is_there and is_there ~= plain_mark
    end
    if must_compare then
      stored = read(key)
      row.key, row.number, row.amount = key, i, tonumber(amounts[i])
      if ends then
        row.ends, row.ends_text, row.begins = ends_at, ends[i], begins and tonumber(begins[i])
      elseif state then
        row.state, row.closed_by = state[i], column_of.closed_by[i]
      end
      local outcome = verdict(stored, row, clock)
      is_there, is_idle = stored, stored and stored.phase == 'idle'
      must_write = outcome == 'write' or outcome == 'revise'
      if outcome == 'keep' then
        unchanged = unchanged + 1
        if stored and not corrects and stored.phase ~= 'final' then
          if not endless then call('PEXPIRE', key, ttl[i]) end
          -- The state of this term has the session, too: with the new epoch, `stale` does not remove it.
          if state and is_idle and stored.epoch < epoch then call('HSET', key, 'epoch', a.epoch, 'batch', a.batch) end
        end
      elseif outcome == 'older' then
        old, is_lacking = old + 1, is_lacking or not stored
      elseif outcome == 'closed' then
        refused = refused + 1
      elseif outcome == 'revise' then
        revision = (tonumber(call('HGET', key, 'revision') or nil) or 0) + 1
      end
      if corrects then outcomes[2 * i - 1], outcomes[2 * i] = outcome, revision or (stored and stored.revision) or 0 end
    end
    if again and (stored or must_write) then enter(i) end
    if must_write then
      -- The value is written last: if a command fails, the repeat finds the old value and repeats all of them.
      if devices and stored and stored.epoch < epoch then
        local stored_start = call('HGET', key, 'session') or nil
        local former, current_start = tonumber(stored_start), tonumber(column_of.session[i] or nil)
        if former and (not current_start or current_start < former) then drop(key, stored_start) end
      end
      if state and not is_there then
        revision = 0
        enter(i)
      -- A session that is closed has been in the list since it was new: the list's expiry alone is renewed, if the list is there.
      elseif state and state[i] == 'closed' and call('PEXPIRE', list_of(key), list_ttl) == 0 then
        enter(i)
      end
      args[2] = key
      local n = fixed + 2 * width
      if is_partly then
        n = fixed
        for j = 1, width do
          local value = columns[j][i]
          if value then
            args[n + 1], args[n + 2] = fields[j], value
            n = n + 2
          end
        end
      else
        for j = 1, width do args[fixed + 2 * j] = columns[j][i] end
      end
      if revision then
        args[n + 1], args[n + 2] = 'revision', string.format('%d', revision)
        n = n + 2
      end
      if corrects then
        announce_correction(key, revision or 0)
        args[4], args[6] = stored and stored.epoch or a.epoch, stored and stored.batch or a.batch
      else
        announce(kind, key)
      end
      local added = set_fields(args, n)
      if ends then
        is_there = added < n / 2 - 1
        if not is_there then enter_window(key) end
        if not endless and ends_at > latest then latest = ends_at end
        if stored and (corrects or stored.is_part or stored.epoch < epoch or stored.batch < since) then tidy(key, i, n, 0) end
      elseif is_there then
        tidy(key, i, n, state and not revision and 1 or 0)
      end
      if not endless and not (corrects and is_there) then call('PEXPIRE', key, ttl[i]) end
      written = written + 1
      if not is_there then new = new + 1 end
      if state and not is_idle and state[i] == 'closed' then closed = closed + 1 end
      if stored and stored.epoch == 0 and devices then call('ZADD', NEVER, 'XX', 0, devices[i]) end
    end
  end

  if is_lacking and call('EXISTS', KEYS[7]) == 0 then call('SET', KEYS[5], 'asked ' .. a.updated, 'NX') end
  if latest > known then call('SET', KEYS[3], string.format('%.0f', latest)) end
  return corrects and outcomes or {written, unchanged, old, refused, new, closed}
end

-- Adds early readings to devices: a.keys, a.members (ids), a.counts, and in ms a.first, a.last (the broker's times), a.ahead.
-- A device is skewed from a.threshold early readings on, each within a.within of the one before. `early` creates the device hash
-- if it does not exist. As ids can be invented, the hash expires after a.within until the device is admitted or skewed, then
-- after a.ttl.
local function early()
  for i = 1, #a.keys do
    local key, last = a.keys[i], a.last[i]
    local stored = call('HMGET', key, 'epoch', 'batch', 'early', 'early.at', 'skewed', 'last_seen', 'status')
    local is_new = not tonumber(stored[1] or nil)
    local at = tonumber(stored[4] or nil) or -1
    -- Readings that are not newer were counted before: the batch is repeated.
    if at < last and (is_new or not is_older(tonumber(stored[1]), tonumber(stored[2]))) then
      local count = a.counts[i]
      if at >= 0 and a.first[i] - at <= a.within then count = count + tonumber(stored[3]) end
      if is_new then
        call('HSET', key, 'status', 'offline', 'last_seen', '0', 'session', '', 'reference', '')
      elseif stored[7] == 'never' then
        call('HSET', key, 'status', 'offline')
        call('ZADD', NEVER, 'XX', 0, a.members[i])
      end
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

-- Returns how many devices are skewed, and with a.lists each and the time of its last early reading. A device whose last early reading
-- is older than a.floor has no hash any more.
local function skewed()
  call('ZREMRANGEBYSCORE', KEYS[6], '-inf', '(' .. a.floor)
  local reply = a.lists and call('ZRANGE', KEYS[6], 0, -1, 'WITHSCORES') or {}
  table.insert(reply, 1, call('ZCARD', KEYS[6]))
  return reply
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
  call('HDEL', KEYS[4], 'writing', 'waiting')
  return {1}
end

-- Notes that all open values that waited are written, as of the batch that progress has.
local function written()
  local stored = call('HMGET', KEYS[4], 'epoch', 'batch')
  if is_older(tonumber(stored[1] or nil) or 0, tonumber(stored[2] or nil) or -1) then return {0} end
  call('HDEL', KEYS[4], 'writing', 'waiting')
  return {1}
end

-- Writes progress, and a.meta if it has changed. a.waiting is the number of open values that wait, absent for none. With progress all
-- windows that end by `final` are closed, which never falls: a writer that reads the topic again has a smaller watermark than before.
-- a.leads, absent for none, is how far (ms) behind the watermark windows may end that are settled, by view: nor does `settled` of a view
-- fall, which stays until it is final. Returns {1, or 0 if the stored batch is newer, then the epoch and the batch that were stored
-- before, or '', then `final`}.
local function progress()
  local stored = call('HMGET', KEYS[4], 'epoch', 'batch', 'final', 'idle', 'settled')
  local stored_epoch = tonumber(stored[1] or nil)
  if stored_epoch and is_older(stored_epoch, tonumber(stored[2] or nil) or -1) then
    return {0, stored[1], stored[2], stored[3] or ''}
  end
  local final = tonumber(stored[3] or nil) or -1
  local has_moved = tonumber(a.watermark) > final
  if has_moved then final = tonumber(a.watermark) end
  call('HSET', KEYS[4], 'epoch', a.epoch, 'batch', a.batch, 'watermark', a.watermark, 'final', string.format('%.0f', final),
    'offsets', a.offsets, 'reference', a.reference, 'updated', a.updated)
  call('HDEL', KEYS[4], 'writing', 'waiting')
  if a.waiting then call('HSET', KEYS[4], 'waiting', a.waiting) end
  if a.leads or stored[5] then
    local lines = {}
    for view, line in pairs(stored[5] and cjson.decode(stored[5]) or {}) do lines[view] = line > final and line or nil end
    for view, lead in pairs(a.leads or {}) do
      local line = tonumber(a.watermark) + lead
      if line > (lines[view] or final) then lines[view], has_moved = line, true end
    end
    if next(lines) then
      call('HSET', KEYS[4], 'settled', cjson.encode(lines))
    else
      call('HDEL', KEYS[4], 'settled')
    end
  end
  if has_moved then announce('progress', KEYS[4]) end
  if (tonumber(stored[4] or nil) or math.huge) <= final then call('HDEL', KEYS[4], 'idle', 'idle_epoch', 'idle_batch') end
  if call('GET', KEYS[8]) ~= a.meta then call('SET', KEYS[8], a.meta) end
  return {1, stored[1] or '', stored[2] or '', string.format('%.0f', final)}
end

-- Returns {epoch, batch, watermark, offsets, reference} of progress, the republish mark, the rebuild mark, meta, the event time by
-- which every window ends, and `final`, `idle` and `waiting` of progress; '' if one is missing.
local function read_progress()
  local values = call('HMGET', KEYS[4], 'epoch', 'batch', 'watermark', 'offsets', 'reference')
  for i = 1, 5 do values[i] = values[i] or '' end
  values[6], values[7], values[8] = call('GET', KEYS[5]) or '', call('GET', KEYS[7]) or '', call('GET', KEYS[8]) or ''
  values[9] = call('GET', KEYS[3]) or ''
  local more = call('HMGET', KEYS[4], 'final', 'idle', 'waiting')
  for i = 1, 3 do values[9 + i] = more[i] or '' end
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

local function remove_window(key)
  call('DEL', key)
  announce('window', key)
end

-- Scans one page of keys of a.pattern from a.cursor on, and removes those for which is_wrong(key) holds. Returns {the next cursor,
-- removed}.
local function remove_all(is_wrong, remove)
  local page = call('SCAN', a.cursor, 'MATCH', a.pattern, 'COUNT', a.limit)
  local removed = 0
  for _, key in ipairs(page[2]) do
    if is_wrong(key) then
      remove(key)
      removed = removed + 1
    end
  end
  return {page[1], removed}
end

-- Removes windows that end by a.watermark and were not final before: after a loss of data they may lack readings, and progress is
-- about to call them final.
local function forget()
  local final = tonumber(call('HGET', KEYS[4], 'final') or nil) or -1
  return remove_all(function(key)
    local ends = tonumber(call('HGET', key, 'end') or nil)
    return ends and ends > final and ends <= tonumber(a.watermark)
  end, remove_window)
end

-- Removes windows that lack readings and begin at a.begins or later: their view is complete from there on, and their readings are
-- in windows of other keys.
local function parts()
  return remove_all(function(key)
    local stored = call('HMGET', key, 'complete_from', 'start')
    return stored[1] and tonumber(stored[2]) >= tonumber(a.begins) and tonumber(stored[2]) < tonumber(stored[1])
  end, remove_window)
end

-- Removes sessions that are open or closed by silence alone, were written before the epoch a.before, and have their last reading
-- before a.last (event time, '' for any): the state does not have these sessions any more, because they are closed or part of others.
local function stale()
  return remove_all(function(key)
    local stored = call('HMGET', key, 'state', 'epoch', 'closed_by', 'last')
    local is_over = a.last == '' or (tonumber(stored[4] or nil) or 0) < tonumber(a.last)
    return (stored[1] == 'open' or stored[3] == 'idle') and (tonumber(stored[2] or nil) or 0) < a.before and is_over
  end, remove_session)
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

-- Lists devices of the reference as `never`, unless they have sent: a.keys, a.members (ids), a.columns[j], the values of the attribute
-- a.fields[j], a.reference, and a.since (ms). The hash of such a device has the epoch 0, so that the device's first row is compared
-- with it in every term, and it does not expire. With a.compares attributes that have changed are written. Returns {0, then
-- the places, from 0, of those that have sent}, {-1} while values that Redis has lost or had before are written.
local function expect()
  if call('EXISTS', KEYS[5], KEYS[7]) > 0 then return {-1} end
  local reply = {0}
  for i, key in ipairs(a.keys) do
    local since, status = call('ZSCORE', NEVER, a.members[i]), call('HGET', key, 'status')
    if since == '0' or (status and status ~= 'never') then
      reply[#reply + 1] = i - 1
    elseif a.compares or not (since and status) then
      local args = {'HSET', key, 'status', 'never', 'last_seen', '0', 'session', '', 'reference', a.reference,
        'epoch', '0', 'batch', '0', 'updated', a.updated}
      local is_same = status
      local stored = #a.fields > 0 and call('HMGET', key, unpack(a.fields))
      for j, name in ipairs(a.fields) do
        local value = a.columns[j][i] or false
        is_same = is_same and stored[j] == value
        if value then
          args[#args + 1] = name
          args[#args + 1] = value
        end
      end
      if not (is_same and call('HLEN', key) == #args / 2 - 1) then
        call('DEL', key)
        call(unpack(args))
        announce('device', key)
      end
      call('ZADD', NEVER, 'NX', a.since, a.members[i])
    end
  end
  return reply
end

-- Returns {the next cursor, then the devices of a page of the list from a.cursor on}.
local function expected()
  local page = call('ZSCAN', NEVER, a.cursor, 'COUNT', a.limit)
  local reply = {page[1]}
  for i = 1, #page[2], 2 do reply[#reply + 1] = page[2][i] end
  return reply
end

-- Takes devices out of the list: a.keys, a.members. Those that have sent keep their hashes. Returns {their number}.
local function unexpect()
  for i, key in ipairs(a.keys) do
    if call('HGET', key, 'status') == 'never' then
      call('DEL', key)
      announce('device', key)
    end
    call('ZREM', NEVER, a.members[i])
  end
  return {#a.keys}
end

local steps = {
  expect = expect, expected = expected, unexpect = unexpect,
  drop = drop,
  begin = begin, write = write, early = early, skewed = skewed, idle = idle, written = written,
  progress = progress, read_progress = read_progress, mark = mark, forget = forget, parts = parts, stale = stale, unmark = unmark,
}
call('XLEN', KEYS[2])  -- fails before a value is written that the feed cannot name
-- The feed and the views' sets name what a step has written, also when one of its commands has failed: a repeat finds those
-- values unchanged.
local is_done, reply = pcall(steps[ARGV[1]])
for view in pairs(entered) do enter_all(view) end
for kind in pairs(changed) do announce_all(kind) end
if newest_entry then
  call('XTRIM', KEYS[2], 'MAXLEN', '~', a.feed)
  -- An id begins with Redis' clock in ms. The newest of the entries that are too old stays: a reader that waits behind it, as after
  -- a silence, sees by it that no entry is lost. Where none is too old, XREVRANGE would walk through the whole feed.
  local too_old_ms = tonumber(newest_entry:match('%d+')) - a.feed_ms - 1
  local oldest = call('XRANGE', KEYS[2], '-', '+', 'COUNT', 1)[1]
  if tonumber(oldest[1]:match('%d+')) <= too_old_ms then
    local last = call('XREVRANGE', KEYS[2], string.format('%.0f', too_old_ms), '-', 'COUNT', 1)[1]
    call('XTRIM', KEYS[2], 'MINID', '~', last[1])
  end
end
if not is_done then error(reply, 0) end
return reply
