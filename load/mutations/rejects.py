"""Mutations of rejects: their copies, marks and replay."""

from load.mutations.mutation import Edit, Mutation

_PUBLISH = "tests/integration/test_publish.py::"
_REJECTS = "tests/integration/test_rejects.py::"
_READMISSION = "tests/integration/test_readmission.py::"
_COPIES = "tests/integration/test_reject_copies.py::"
_TWO_PLACES = "tests/integration/test_two_places.py::"
_REPUBLISH = "tests/integration/test_republish.py::"

MUTATIONS = (
    Mutation(
        "copy-of-another",
        "where a rejected record is gone, the bytes of the next one are taken for it",
        "a reject shows, and a replay sends, what another device wrote",
        ("P4",),
        (
            Edit(
                "service/rejects/fetch.py",
                'None if ended or row["offset"] != offset else Record.of(message)',
                "None if ended else Record.of(message)",
            ),
        ),
        (_COPIES + "test_records_that_kafka_no_longer_has_are_sent_as_coordinates",),
    ),
    Mutation(
        "too-large-replayed",
        "a reject that its topic refuses as too large fails the batch",
        "one device's large header stops the service for ever",
        ("P6",),
        (Edit("service/rejects/delivery.py", "if error.code() in _TOO_LARGE:", "if False:"),),
        (_COPIES + "test_what_is_too_large_for_the_rejects_topic_is_cut_down_and_never_sent_for_ever",),
    ),
    Mutation(
        "failed-copy-unseen",
        "what the broker refuses counts as delivered",
        "a reject is in no topic, and its record counts as processed",
        ("P4",),
        (
            Edit(
                "service/rejects/delivery.py",
                "        if error is not None or missing:\n",
                "        if False:\n",
            ),
        ),
        (_PUBLISH + "test_nothing_is_written_to_redis_before_every_reject_is_delivered",),
    ),
    Mutation(
        "copies-unbounded",
        "the producer of rejects holds whatever it is given",
        "large rejects, and many of them, take all memory",
        ("P6",),
        (
            Edit(
                "service/rejects/delivery.py",
                '"queue.buffering.max.kbytes": _QUEUE_KIB',
                '"queue.buffering.max.kbytes": 2_000_000',
            ),
        ),
        (_COPIES + "test_what_waits_for_the_broker_is_bounded_in_bytes",),
    ),
    Mutation(
        "marks-unread",
        "a replay of rejects does not ask which of them were sent before",
        "each run sends all of them again, and they count twice",
        ("P4",),
        (
            Edit(
                "service/commands/replay.py",
                "known = _finish(settings.kafka, known, say)",
                "known = {}",
            ),
        ),
        (_READMISSION + "test_what_is_sent_again_is_sent_once_whoever_asks_how_often",),
    ),
    Mutation(
        "replayed-without-admission",
        "a replay sends what admission would reject again",
        "the record is rejected a second time, and its reject is marked as replayed",
        ("P4",),
        (
            Edit(
                "service/commands/replay.py",
                "                ready = _admissible(ready, readmission, counts, say)\n",
                "                pass\n",
            ),
        ),
        (_READMISSION + "test_what_is_sure_to_be_rejected_again_is_neither_sent_nor_marked",),
    ),
    Mutation(
        "taken-not-looked-for",
        "what a killed replay has begun is open again without a look into the topic",
        "the next run sends again what the killed one had sent",
        ("P4",),
        (
            Edit(
                "service/commands/replay.py", "if name == ORIGIN and text is not None and text in places:", "if False:"
            ),
        ),
        (_REJECTS + "test_a_replay_that_is_killed_is_finished_by_the_next_and_sends_nothing_twice",),
    ),
    Mutation(
        "replay-not-fenced",
        "a replay goes on when another has begun",
        "both send the same rejects",
        ("P4",),
        (Edit("service/commands/replay.py", "    fence.check()\n", ""),),
        (_REJECTS + "test_a_run_that_another_has_overtaken_sends_nothing",),
    ),
    Mutation(
        "fence-begins-again",
        "runs that apply rejects count themselves, and begin again in a Redis that lost its data",
        "two runs with the same number both send the same rejects",
        ("P4",),
        (Edit("service/rejects/fence.py", "self.number = self.began_ms", "self.number = 1 or self.began_ms"),),
        (_REJECTS + "test_a_run_from_before_redis_lost_its_data_sends_nothing",),
    ),
    Mutation(
        "republished-from-nothing",
        "a host without a committed batch takes the request to republish for done",
        "what Redis lost stays lost, and nothing says so any more",
        ("P7",),
        (
            Edit(
                "service/commands/republish.py",
                "        _committed(spark, settings)\n        settings",
                "        settings",
            ),
        ),
        (_REPUBLISH + "test_where_no_batch_was_committed_nothing_is_republished_and_the_mark_stays",),
    ),
    Mutation(
        "own-headers-trusted",
        "the first headers with Tidemark's names count, not the last ones",
        "a device hides its reject, or says another reason, place and size of it",
        ("P4", "P6"),
        (
            Edit(
                "service/rejects/delivery.py",
                "    own, added = everything[: -len(names)], everything[-len(names) :]\n",
                "    own, added = [], [each for each in everything if each[0].startswith(HEADER)][: len(names)]\n",
            ),
        ),
        (_REJECTS + "test_no_header_of_a_records_own_hides_or_changes_its_reject",),
    ),
    Mutation(
        "origin-without-token",
        "a record that says it was sent for a reject is believed",
        "a device marks others' rejects as replayed, and they are never sent",
        ("P4", "P6"),
        (
            Edit(
                "service/commands/replay.py",
                "places = {_origin(mark): place for place, mark in taken.items()}",
                'places = {_origin(Mark(place, "open", {})): place for place in taken}',
            ),
        ),
        (_REJECTS + "test_who_forges_an_origin_marks_nobodys_reject_as_replayed",),
    ),
    Mutation(
        "late-mark-wins",
        "of two marks of a reject the newer one counts, whatever it says",
        "a run that comes too late makes a reject open again that is done",
        ("P4",),
        (
            Edit(
                "service/rejects/marks.py",
                " and (mark.place not in newest or newest[mark.place].state not in ENDS)",
                "",
            ),
        ),
        (_REJECTS + "test_a_mark_that_comes_too_late_does_not_hide_the_end",),
    ),
    Mutation(
        "original-recomputed",
        "a recomputation admits the original of a record that was sent again, if today's settings do",
        "the record counts twice after a backfill, a republication or a correction",
        ("P1",),
        (
            Edit(
                "service/recompute/late.py",
                'return dict.fromkeys(two_places.originals(known), Refusal("replayed", -1))',
                "return {}",
            ),
        ),
        (
            _TWO_PLACES + "test_a_reject_that_was_sent_again_counts_once_whichever_way_the_past_is_computed",
            _TWO_PLACES + "test_a_copy_that_is_late_and_corrected_counts_once",
        ),
    ),
    Mutation(
        "original-read-again",
        "a new checkpoint admits the original of a record that was sent again, if today's settings do",
        "the record counts twice from then on",
        ("P1",),
        (Edit("service/rejects/two_places.py", "if begin <= place.offset < end:", "if False:"),),
        (
            _TWO_PLACES + "test_a_reject_that_was_sent_again_counts_once_whichever_way_the_past_is_computed",
            _TWO_PLACES + "test_a_late_reading_whose_time_is_mended_counts_once_in_a_view_without_windows",
        ),
    ),
    Mutation(
        "copy-of-late-counted",
        "a view without windows counts the copy of a late reading that it has counted",
        "a reading whose time was mended counts twice in it",
        ("P1",),
        (
            Edit(
                "service/aggregation/partial_aggregation.py",
                "if COUNTED not in readings.column_names or not pc.any(readings[COUNTED]).as_py():",
                "if True:",
            ),
        ),
        (_TWO_PLACES + "test_a_late_reading_whose_time_is_mended_counts_once_in_a_view_without_windows",),
    ),
    Mutation(
        "replayed-before-published",
        "a replay sends a reject that the service has not published",
        "a batch that is repeated admits the original, and the copy counts, too",
        ("P1",),
        (Edit("service/commands/replay.py", "if published and place.offset >=", "if False and place.offset >="),),
        (_TWO_PLACES + "test_a_reject_that_the_service_has_not_published_is_not_sent_again",),
    ),
    Mutation(
        "behind-unread",
        "the rejects of earlier versions that were behind the watermark are taken for late by the broker's time",
        "a backfill admits them, and differs from the stream",
        ("P1",),
        (
            Edit(
                "service/rejects/reject_log.py",
                'reason = reason if times[1] is None else "behind"',
                "pass",
            ),
        ),
        ("tests/unit/test_late.py::test_rejects_of_earlier_versions_have_their_reason_and_times_in_the_text",),
    ),
)
