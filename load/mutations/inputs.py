"""Mutations of several inputs, and of topics that come and go."""

from load.mutations.mutation import Edit, Mutation

_SHAPES = "tests/stream/test_inputs.py::"
_TOPICS = "tests/integration/test_topics.py::"
_ARRAYS, _CUTS = "tests/stream/test_arrays.py::", "tests/unit/test_arrays.py::"

MUTATIONS = (
    Mutation(
        "one-shape-for-all",
        "records of every topic are decoded as the first input says",
        "readings of the other inputs are rejects",
        ("P1", "P4"),
        (
            Edit(
                "service/admission/inputs.py",
                "for n, each in enumerate(settings.split()):",
                "for n, each in ((0, each) for each in settings.split()):",
            ),
        ),
        (_SHAPES + "test_a_device_on_two_topics_is_one_device_with_one_session",),
    ),
    Mutation(
        "left-topic-forgotten",
        "a topic that comes back begins where kafka.starting says",
        "records that arrived while it was away are never read, or all records are read twice",
        ("P1", "P7"),
        (
            Edit(
                "service/checkpoint/topics.py",
                "for topic in new if topic in log.left}",
                "for topic in new if topic in ()}",
            ),
        ),
        (_TOPICS + "test_a_topic_comes_where_starting_says_goes_and_comes_back_where_it_was",),
    ),
    Mutation(
        "repeated-batch-without-its-topic",
        "a batch that was begun is repeated without a topic that the settings have lost since",
        "values that were published go back",
        ("P2",),
        (Edit("service/checkpoint/topics.py", "    if needed:", "    if False:"),),
        (_TOPICS + "test_a_batch_that_was_begun_with_a_topic_is_repeated_with_it",),
    ),
    Mutation(
        "left-topic-whole",
        "closed values are published again without the readings of a topic that is not read any more",
        "a window is final with a part of its readings",
        ("P1", "P7"),
        (
            Edit(
                "service/recompute/sources.py",
                "whole_from_ms = max((newest_ms + 1 for newest_ms in left.values()), default=0)",
                "whole_from_ms = 0",
            ),
        ),
        (_TOPICS + "test_what_a_topic_that_left_has_readings_in_is_not_published_again_without_them",),
    ),
    Mutation(
        "long-measures-are-mixed",
        "a long record is a reading of every measure, whatever its name",
        "the windows of a measure have the values of others",
        ("P4",),
        (
            Edit(
                "service/admission/long_format.py",
                "parts.append(F.coalesce(has if kind is None else has & kind(each.path).isin(*_TEXTS), F.lit(False)))",
                "parts.append(F.lit(True))",
            ),
        ),
        (
            "tests/stream/test_long_format.py::test_each_record_is_a_reading_of_one_measure_and_another_metric_is_counted",
        ),
    ),
    Mutation(
        "element-without-its-index",
        "all readings of an array have the index of the first",
        "a reject names another reading of its record, and several rejects have one place",
        ("P4",),
        (
            Edit(
                "service/admission/expansion.py",
                "[(each, number, None, None) for number, each in enumerate(found.readings)]",
                "[(each, 0, None, None) for each in found.readings]",
            ),
        ),
        (
            _ARRAYS + "test_each_reading_is_admitted_filtered_or_rejected_alone_as_the_oracle_does",
            _ARRAYS + "test_a_copy_in_the_same_array_or_in_a_later_one_has_the_index_of_the_first",
        ),
    ),
    Mutation(
        "further-readings-as-records",
        "all readings of an array count as records",
        "records that Kafka has deleted before they were read are not counted as lost",
        ("P4", "P7"),
        (
            Edit(
                "service/pipeline/outcome.py",
                "self.filtered - self.further",
                "self.filtered",
            ),
        ),
        (_CUTS + "test_records_are_the_readings_without_further_ones",),
    ),
    Mutation(
        "bomb-unpacked",
        "gzip is decompressed to its end",
        "a record of a few KB takes all memory of a worker, at each start",
        ("P6",),
        (
            Edit(
                "service/admission/arrays.py",
                "member.decompress(rest, limit + 1 - size)",
                "member.decompress(rest)",
            ),
        ),
        (_CUTS + "test_a_bomb_is_refused_before_it_is_unpacked",),
    ),
    Mutation(
        "repeated-bytes-free",
        "each reading of a record is compared with the limit alone",
        "a record of a few KB, whose readings repeat its base name, takes all memory of a worker, at each start",
        ("P6",),
        (
            Edit(
                "service/admission/arrays.py",
                "size += len(reading)",
                "size = len(reading)",
            ),
        ),
        ("tests/unit/test_formats.py::test_what_each_reading_repeats_of_its_record_counts_towards_the_limit",),
    ),
)
