"""Mutations of rejects: their copies, marks and replay."""

from load.mutations.mutation import Edit, Mutation

_REJECTS = "tests/integration/test_rejects.py::"
_READMISSION = "tests/integration/test_readmission.py::"
_COPIES = "tests/integration/test_reject_copies.py::"
_TWO_PLACES = "tests/integration/test_two_places.py::"

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
        "replay-not-fenced",
        "a replay goes on when another has begun",
        "both send the same rejects",
        ("P4",),
        (Edit("service/commands/replay.py", "    fence.check()\n", ""),),
        (_REJECTS + "test_a_run_that_another_has_overtaken_sends_nothing",),
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
