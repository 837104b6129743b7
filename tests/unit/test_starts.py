"""How often the query has ended at a batch, and which of its records a probe names."""

from collections.abc import Iterator, Sequence
from contextlib import suppress
from pathlib import Path
from typing import cast

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pyspark.sql import SparkSession

from service.admission.schema_catalog import NewSchemaError
from service.checkpoint import skips
from service.checkpoint.skips import Care, ReadAnewError, Span
from service.daemon import probe, starts
from service.daemon.starts import Starts
from service.errors import (
    ExhaustedError,
    FencedError,
    SetupError,
    SinkError,
    SparkLostError,
    TidemarkError,
    WorkerLostError,
)
from service.settings import Settings
from service.spark.files import Local
from tests.stream.records import make_settings


def test_ends_without_a_known_reason_are_counted_at_one_batch() -> None:
    first = Starts().again(7, is_replay=False)
    assert first == Starts(7, 0, running=True)
    died_at_9 = first.again(9, is_replay=True)
    assert died_at_9.ends == 1
    again = died_at_9.again(9, is_replay=True)
    assert again.ends == 2
    stopped = Starts(9, again.ends, running=False).again(9, is_replay=True)
    assert stopped.ends == 2, "a known reason counts for nothing and forgives nothing"
    assert stopped.again(10, is_replay=True).ends == 1
    assert stopped.again(10, is_replay=False).ends == 0


@pytest.mark.parametrize(
    ("error", "is_counted"),
    [
        (WorkerLostError("a worker"), True),
        (SparkLostError("the JVM"), True),
        (ExhaustedError("open files"), False),
        (SetupError("java.lang.OutOfMemoryError: Java heap space"), True),
        (RuntimeError("something that nobody has foreseen"), True),
        (SetupError("no disk"), False),
        (SinkError("Redis is away"), False),
        (FencedError("another"), False),
        (NewSchemaError("2"), False),
        (ReadAnewError("batch 7"), False),
    ],
)
def test_what_counts(error: Exception, is_counted: bool) -> None:
    assert starts.counts(error) is is_counted


@pytest.mark.parametrize("content", ["", "[]", "{", '{"batch": "x", "more": 2}'])
def test_a_count_that_cannot_be_read_begins_anew(tmp_path: Path, content: str) -> None:
    (tmp_path / starts.DOCUMENT.name).write_text(content)
    assert starts.read(Local(tmp_path)) == Starts()


@pytest.fixture
def settings(tmp_path: Path) -> Settings:
    """With a checkpoint by hand: batch 0 is committed, batch 1 is begun."""
    folder = Local(tmp_path / "checkpoint")
    for batch, end in enumerate((5, 10)):
        folder.replace(f"offsets/{batch}", f'v1\n{{}}\n{{"readings":{{"0":{end}}}}}'.encode())
    folder.replace("commits/0", b"v1\n{}")
    skips.write(folder, [Span("readings", 0, 3, 5), Span("readings", 0, 7, 8)])
    return make_settings(tmp_path, service={"checkpoint": str(folder.root)})


def test_a_start_is_counted_by_how_it_ends(settings: Settings) -> None:
    folder, nobody = Local(Path(settings.service.checkpoint)), cast("SparkSession", None)

    def start(error: Exception | None) -> tuple[int, bool]:
        with suppress(TidemarkError), starts.counted(nobody, settings) as care:
            assert care == Care((Span("readings", 0, 7, 8),), careful=1), (
                "what lies behind the query is no concern of it"
            )
            assert starts.read(folder).running
            if error is not None:
                raise error
        content = starts.read(folder)
        assert content.batch == 1
        return content.ends, content.running

    assert start(None) == (0, False)
    assert start(WorkerLostError("a worker")) == (0, True)
    assert start(SinkError("Redis is away")) == (1, False)
    assert start(SparkLostError("the JVM")) == (1, True)
    assert start(None) == (2, False)


def test_what_the_last_process_has_named_is_shown_until_the_next_one_has_probed(settings: Settings) -> None:
    assert starts.unreadable(settings) == 0
    Local(Path(settings.service.checkpoint)).replace(starts.DOCUMENT.name, b'{"batch": 1, "ends": 2, "unreadable": 4}')
    assert starts.unreadable(settings) == 4


BATCHES = st.lists(st.tuples(st.integers(1, 6), st.sampled_from(["good", "large", "deadly"])), max_size=12)


@given(BATCHES, st.integers(0, 5))
def test_a_probe_names_every_unreadable_offset_and_no_other(batches: list[tuple[int, str]], ahead: int) -> None:
    """A process reads whole record batches and tells their offsets later than it has read the next ones: `ahead` of them."""
    kinds = [kind for many, kind in batches for _ in range(many)]

    def run(spans: Sequence[Span]) -> Iterator[tuple[int, bool]]:
        for span in spans:
            unrecoverable: list[tuple[int, bool]] = []
            for offset in range(span.begin, span.end):
                if kinds[offset] == "deadly":
                    return
                unrecoverable.append((offset, kinds[offset] == "good"))
                if len(unrecoverable) > ahead:
                    yield unrecoverable.pop(0)
            yield from unrecoverable

    # A process that begins at an offset passes it: nothing is read ahead of the first record batch.
    def exact(spans: Sequence[Span]) -> Iterator[tuple[int, bool]]:
        results = list(run(spans))
        first = spans[0].begin
        yield from results or ([(first, kinds[first] == "good")] if kinds[first] != "deadly" else [])

    asked = [Span("readings", 0, 0, len(kinds) // 2), Span("readings", 1, len(kinds) // 2, len(kinds))]
    unreadable = skips.merged(probe.probed([each for each in asked if each.offsets], exact))
    bad = {offset for each in unreadable for offset in range(each.begin, each.end)}
    assert bad == {offset for offset, kind in enumerate(kinds) if kind != "good"}


def test_a_probe_gives_up_after_many_deaths() -> None:
    spans = list(probe.probed([Span("readings", 0, 0, 1_000_000)], lambda _: ()))
    assert len(spans) == probe.DEATHS


def test_the_error_names_the_command_that_mends_it() -> None:
    error = starts._unreadable_error(812, (Span("readings", 2, 1207, 1211), Span("readings", 3, 5, 6)))
    assert isinstance(error, TidemarkError)
    assert error.status == 11
    assert "Batch 812" in error.what
    assert "tidemark skip --dry-run 'readings[2]@1207-1210' 'readings[3]@5'`" in error.remedy
