"""Mutations of the state: event time, windows, sessions, devices, what is stored of them."""

from load.mutations.mutation import Edit, Mutation

_TIME = "tests/unit/test_watermark.py::"
_WINDOWS = "tests/unit/test_state_windows.py::"
_STORE = "tests/unit/test_state_store.py::"
_WALKS = "tests/integration/test_walks.py::test_a_random_walk_ends_as_plain_lists_say"

MUTATIONS = (
    Mutation(
        "watermark-by-now",
        "windows are final by this machine's clock, not by the event time of the readings",
        "windows are sealed while their readings are still on the way, and a replay seals others",
        ("P1",),
        (
            Edit(
                "state/watermark.py",
                "min([line_ms, *bounds])",
                "__import__('time').time_ns() // 1_000_000",
            ),
        ),
        (
            _TIME + "test_it_follows_the_newest_event_time_and_never_goes_back",
            "tests/stream/test_pass.py::test_a_reading_behind_the_watermark_is_late_and_changes_nothing",
            "tests/integration/test_behind.py::test_a_partition_with_unread_records_holds_the_watermark",
        ),
    ),
    Mutation(
        "kept-state-trusted",
        "a worker uses the state that it keeps of a bucket whatever is stored",
        "a replay counts readings of the attempt that failed, and another worker's batches are lost",
        ("P1",),
        (
            Edit("state/store.py", "if kept is None or kept.head.token == head.token:", "if True:"),
            Edit("state/store.py", "        if token != head.token:\n            return None\n", ""),
        ),
        (
            _STORE + "test_a_replay_does_not_use_the_state_of_the_attempt_that_failed",
            _STORE + "test_another_worker_reads_everything_and_after_that_only_the_deltas_that_it_has_not_seen",
        ),
    ),
    Mutation(
        "token-of-bytes-alone",
        "a delta's token does not depend on the one before it",
        "states that differ in their base are taken for each other",
        ("P1",),
        (Edit("state/store.py", "blake2b(before + data,", "blake2b(data,"),),
        (
            _STORE + "test_a_state_that_went_another_way_after_the_same_base_is_not_caught_up_with",
            _STORE + "test_entries_that_do_not_belong_together_are_refused[a base of another state]",
        ),
    ),
    Mutation(
        "window-forgets",
        "a part replaces what a window has instead of being merged into it",
        "windows have the readings of their last batch only",
        ("P1",),
        (
            Edit(
                "state/windows.py",
                "merged, new_values = COLUMNS[name].pair(left, right), parts",
                "merged, new_values = right[name], parts",
            ),
        ),
        (_WINDOWS + "test_windows_batch_by_batch_are_those_of_a_plain_recomputation",),
    ),
    Mutation(
        "unread-waits-for-nothing",
        "a partition with unread records does not hold the watermark",
        "readings that were there in time are late, because their partition is read more slowly than the others",
        ("P1", "P7"),
        (Edit("state/watermark.py", "        if each.is_unread\n", "        if False\n"),),
        (
            _TIME + "test_a_partition_with_unread_records_holds_it_at_what_it_may_still_give",
            _TIME + "test_nothing_that_is_admitted_is_late_however_far_partitions_are_apart",
            "tests/integration/test_behind.py::test_a_partition_with_unread_records_holds_the_watermark",
        ),
    ),
    Mutation(
        "hold-for-ever",
        "a partition with unread records holds the watermark although none of them is read",
        "one partition that cannot be read keeps every window open",
        ("P6",),
        (Edit("service/checkpoint/event_time.py", "if now_s - read_s <= max_hold_ms / 1000]", "if now_s >= read_s]"),),
        (
            "tests/unit/test_event_time.py::test_the_watermark_does_not_wait_for_a_partition_that_is_not_read_for_max_hold",
        ),
    ),
    Mutation(
        "correction-waits-for-nothing",
        "late readings of sessions that are open are corrected like all others",
        "they are marked as corrected, and no session ever has them",
        ("P1",),
        (Edit("state/late_sessions.py", "        if not drop.any():\n", "        if True:\n"),),
        (
            "tests/unit/test_late_sessions.py::test_what_would_change_an_open_session_waits_and_what_would_not_does_not",
            "tests/unit/test_late_sessions.py::test_it_is_as_if_the_late_readings_had_come_in_time[2]",
        ),
    ),
    Mutation(
        "final-waits",
        "a window that is closed while it waits does not leave",
        "progress calls windows final that lack the readings of their last update_every",
        ("P1",),
        (Edit("state/windows.py", "| (over & (due != waiting.NEVER))", ""),),
        (
            "tests/unit/test_waiting.py::test_what_waits_leaves_exact_and_in_time_and_finals_and_status_changes_at_once",
            "tests/integration/test_update_every.py::"
            "test_open_values_wait_over_a_restart_and_finals_and_status_changes_are_written_at_once",
        ),
    ),
    Mutation(
        "silence-forgets-what-waits",
        "silence closes windows without writing what waits in the state",
        "progress calls windows final that lack the readings of their last update_every",
        ("P1",),
        (
            Edit(
                "service/daemon/idle_closer.py",
                "if self._waiting != 0 and not self._write_waiting(committed.batch):",
                "if False:",
            ),
        ),
        (
            "tests/integration/test_update_every.py::"
            "test_silence_writes_what_waits_before_it_closes_it_and_what_comes_after_it_is_written_at_once",
        ),
    ),
    Mutation(
        "late-by-gap",
        "a reading within the session gap of its device's last closed session counts as late for it",
        "when a gap has grown, readings that came in time are in no session",
        ("P1", "P4"),
        (
            Edit(
                "state/table.py",
                "    codes, names = _common_codes(before.devices, runs)\n    devices = Devices(",
                "    offline = before.devices.filter(before.devices['session'].is_null()).to_pylist()\n"
                "    closed = {row['device']: row['last_seen'] + rules.gap_ms for row in offline}\n"
                "    starts = zip(runs['device'].to_pylist(), runs['start'].to_pylist(), strict=True)\n"
                "    runs = runs.filter(pa.array([start > closed.get(name, -1) for name, start in starts], pa.bool_()))\n"
                "    codes, names = _common_codes(before.devices, runs)\n    devices = Devices(",
            ),
        ),
        (_WALKS,),
    ),
    Mutation(
        "measures-fall-silent-unseen",
        "a step in which only a measure has fallen silent is left out",
        "a measure stays online until its device falls silent, too",
        ("P1",),
        (Edit("state/table.py", "candidates += _next_silences(state.devices, gap, interval)", "pass"),),
        (
            "tests/unit/test_measure_status.py::test_a_measure_that_its_device_no_longer_sends_is_offline_when_the_device_would_be",
        ),
    ),
)
