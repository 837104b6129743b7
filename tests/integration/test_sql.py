# ruff: noqa: S608 - questions are texts
"""`tidemark sql`: the tables, what is read for a question, and how an answer is printed, on values that the service published."""

import csv
import io
import json
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from itertools import starmap
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from redis.exceptions import ResponseError

from load.servers.redis import Redis
from load.testbed import to_toml
from schemas import contract
from service import settings
from service.cli import main
from service.errors import QuestionError, SettingsError, SinkError
from service.micro_batch import MicroBatch
from service.outlets import tables
from service.outlets.outlet import Entry, Position
from service.outlets.parquet import Parquet
from service.pipeline.batch_publisher import Sink
from service.redis.link import ANSWERS_S
from service.reference.attributes import Index
from service.settings import ParquetOutlet, Settings
from state.statistics import Shown
from tests.examples import one_in
from tests.outputs import MINUTE, T0, changed, changes, device, session, window_table, windows
from tidemark_sql import columns, live, question

pytestmark = pytest.mark.integration

HOSTILE = [
    "x'; drop table windows; --",
    'a"b',
    "a:b:1",
    "*",
    "[a-z]?",
    "Ünïcode – 数",
    "a%7Cb|c",
    "=1+1",
    "\\",
    "(none)",
]
START = "TIMESTAMPTZ '2023-11-14 22:14:00+00'"
"""T0."""

Ask = Callable[[str], list[dict[str, Any]]]


class Values:
    """Windows of two views, sessions and devices of 40 devices, of which ten have hostile ids."""

    def __init__(self, redis: Redis, prefix: str, folder: Path, **options: Any) -> None:
        self.document: dict[str, Any] = {
            "service": {"checkpoint": str(folder / "checkpoint")},
            "kafka": {"bootstrap": "127.0.0.1:1", "topics": ["readings"]},
            "input": {"measures": {"temperature": "temperature", "humidity": "humidity"}},
            "reference": {"url": "jdbc:sqlite:x.db", "query": "q", "columns": ["site"]},
            "views": [
                {
                    "name": "device_1m",
                    "by": ["device"],
                    "window": "1 m",
                    "retain": "1 h",
                    "statistics": ["mean", "max", "p95"],
                },
                {"name": "all_1m", "window": "1 m", "retain": "2 h", "measures": ["temperature"]},
            ],
            "sessions": {"retain": "3 h"},
            "redis": {"url": redis.url, "prefix": prefix, "retry_for": "2 s", "timeout": "2 s", **options},
        }
        self.config = folder / "tidemark.toml"
        self.config.write_text(to_toml(self.document), encoding="utf-8")
        self.settings: Settings = settings.parse(self.document)
        self.client: Any = redis.client()
        self.prefixes = contract.prefixes(prefix, self.settings.redis.shards)
        self.ids = [f"pump-{number:02}" for number in range(30)] + HOSTILE
        for each in self.prefixes:
            self.client.set(f"{each}:epoch", 1)
        self.publish(1, T0 + 2 * MINUTE)

    def publish(self, batch: int, watermark_ms: int) -> None:
        statistics = ("count", "mean", "max", "p95", "last")
        sites = pa.table({"device": self.ids, "site": ["leeds" if n % 2 else "cork" for n in range(len(self.ids))]})
        sink = Sink(self.settings, MicroBatch(1, batch, watermark_ms, {}, {"readings": {0: 12}}, "v7"), Index(sites))
        sink.write(
            [
                windows(
                    [
                        ("device_1m", name, T0 + step * MINUTE, [number + step, number + step + 1.0])
                        for number, name in enumerate(self.ids)
                        for step in range(3)
                    ],
                    statistics,
                ),
                windows([("all_1m", "all", T0 + step * MINUTE, [1.5, 2.5]) for step in range(3)]),
                changes(
                    [session(name, T0 + number) for number, name in enumerate(self.ids)],
                    [device(name, T0 + number, session=T0 + number) for number, name in enumerate(self.ids)],
                ),
            ]
        )
        sink.progress()


@pytest.fixture
def values(redis_server: Redis, prefix: str, tmp_path: Path) -> Iterator[Values]:
    made = Values(redis_server, prefix, tmp_path)
    yield made
    made.client.close()


@pytest.fixture
def ask(values: Values) -> Ask:
    return lambda text: question.answer(values.settings, text).to_pylist()


@pytest.fixture
def read(monkeypatch: pytest.MonkeyPatch) -> dict[str, int]:
    """How many rows were read of each table by the last question."""
    rows: dict[str, int] = {}
    table = live.Live.table

    def counted(self: live.Live, name: str) -> pa.Table:
        found = table(self, name)
        rows[name] = found.num_rows
        return found

    monkeypatch.setattr(live.Live, "table", counted)
    return rows


def test_the_tables_have_all_that_was_published(ask: Ask, values: Values) -> None:
    assert ask("select view, count(*) as n, sum(count)::int as c from windows group by view order by view") == [
        {"view": "all_1m", "n": 3, "c": 6},
        {"view": "device_1m", "n": 120, "c": 240},
    ]
    [row] = ask(f"select * from windows where key = 'pump-07' and view = 'device_1m' and start = {START}")
    assert (row["start"].timestamp() * 1000, row["end"].timestamp() * 1000) == (T0, T0 + MINUTE)
    assert (row["mean"], row["max"], row["p95"], row["measure"], row["sum"]) == (7.5, 8.0, 8.0, "temperature", None)
    assert (row["final"], row["closed_by"], row["epoch"], row["batch"]) == (True, "watermark", 1, 1)
    assert (
        ask("select distinct final, start from windows where view = 'device_1m' order by start")[-1]["final"] is False
    )
    assert ask("select state, count(*) n from sessions group by all") == [{"state": "open", "n": 40}]
    [row] = ask("select * from devices where device = 'pump-07'")
    assert (row["status"], row["ref.site"], row["temperature"], row["humidity"]) == ("online", "leeds", 20.0, None)
    assert row["last_seen"].timestamp() * 1000 == row["temperature.at"].timestamp() * 1000 == T0 + 7
    assert ask('select "ref.site" site, count(*) n from devices group by all order by all') == [
        {"site": "cork", "n": 20},
        {"site": "leeds", "n": 20},
    ]
    assert ask("select count(*) n from windows w join devices d on d.device = w.key where w.view = 'device_1m'") == [
        {"n": 120}
    ]


@pytest.mark.parametrize(
    ("where", "rows"),
    [
        ("key = 'pump-07'", 3),
        ("'pump-07' = key and view = 'device_1m'", 3),
        ("view = 'all_1m'", 3),
        ("view = 'no such view'", 0),
        ("measure = 'humidity'", 0),
        (f"view = 'device_1m' and start >= {START} + interval 1 minute", 80),
        (f"view = 'device_1m' and start > {START} + interval 1 minute", 40),
        ("view = 'device_1m' and start < '2023-11-14 22:15:00+00'", 40),
        (f"view = 'device_1m' and start between {START} and {START}", 40),
        (f"view = 'device_1m' and {START} >= start", 40),
        (f"view = 'device_1m' and \"end\" <= {START} + interval 1 minute", 40),
        (f"view = 'device_1m' and \"end\" > {START} + interval 2 minutes", 40),
        ("key in ('pump-01', 'pump-02') and view in ('device_1m', 'other')", 6),
        ("key in ('pump-01', 'pump-02') and key = 'pump-02'", 3),
        ("start >= now()", 0),
    ],
)
def test_only_the_keys_that_a_predicate_allows_are_read(ask: Ask, read: dict[str, int], where: str, rows: int) -> None:
    answer = ask(f"select count(*) as n from windows where {where}")
    assert (answer, read) == ([{"n": rows}], {"windows": rows})


UNREAD = [
    ("select * from windows where key = 'pump-07' or view = 'all_1m'", 6),
    ("select * from windows where not key = 'pump-07'", 120),
    ("select * from windows where lower(key) = 'pump-07'", 3),
    ("select * from windows where key like 'pump-0%'", 30),
    ("select * from windows where key in (select device from devices where device = 'pump-07')", 3),
    ("select * from windows where key = 'pump-' || (random() * 0)::int::text", 0),
    ("select upper(key) as key from windows where key = 'pump-07'", 3),
    ("with windows as (select * from devices) select * from windows where device = 'pump-07'", 1),
    ("select * from windows as w(a, b, key) where key = 'pump-07' and a = 'device_1m'", 3),
    (
        "select * from windows a join windows b using (view, key, start) where a.key = 'pump-07' and b.view = 'device_1m'",
        3,
    ),
    (
        "select * from devices d left join windows w on w.key = d.device and w.view = 'device_1m' where d.device = 'pump-07'",
        3,
    ),
    (
        "select * from devices d where exists (select 1 from windows where key = d.device and device = 'pump-07')",
        1,
    ),
    (
        "select * from windows where key = 'pump-07' union all select * from windows where view = 'all_1m'",
        6,
    ),
    ("select w from windows w where key = 'pump-07'", 3),
    ("select * from windows where key = 'PUMP-07' collate nocase", 3),
    ("select * from windows where key in ('PUMP-07' collate nocase)", 3),
    ("select g from windows as w(a, b, c, d, e, f, g) where c = 'pump-07'", 3),
    ("select columns('me.*') from windows where key = 'pump-07'", 3),
    ("from windows where key = 'pump-07'", 3),
    (
        "pivot (from windows where view = 'device_1m') on final in (true, false) using max(max) group by key",
        40,
    ),
    ("select * from (values ('pump-07')) t(key) semi join windows using (key)", 1),
    ("select * from windows where start = date '2023-11-14'", 0),
    ("select count(*) from windows where key = 7::text having count(*) = 0", 1),
    (
        "select * from sessions where start > '2023-11-14 22:14:00.007+00' and start <= '2023-11-14 22:14:00.009+00'",
        2,
    ),
    ("select * from sessions where device in ('pump-01', 'nobody')", 1),
    ("describe windows", 21),
]


@pytest.mark.parametrize(("text", "rows"), one_in(3, starmap(pytest.param, UNREAD)))
def test_what_is_left_unread_changes_no_answer(ask: Ask, monkeypatch: pytest.MonkeyPatch, text: str, rows: int) -> None:
    answer = ask(text)
    assert len(answer) == rows
    whole = question.statement.Bounds()
    monkeypatch.setattr(question.statement._Walk, "_of_where", lambda *_, **__: whole)
    monkeypatch.setattr(question.statement.Statement, "needs", lambda *_: True)
    assert sorted(map(repr, ask(text))) == sorted(map(repr, answer))


@pytest.mark.parametrize("name", one_in(4, map(pytest.param, HOSTILE)))
def test_hostile_text_in_ids_is_data(values: Values, capsys: pytest.CaptureFixture[str], name: str) -> None:
    text = name.replace("'", "''")
    for sql in (
        f"select device as id from devices where device = '{text}'",
        f"select distinct key as id from windows where key = '{text}'",
    ):
        assert main(["sql", "--config", str(values.config), "--json", sql]) == 0
        assert json.loads(capsys.readouterr().out) == [{"id": name}]
        assert main(["sql", "--config", str(values.config), "--csv", sql]) == 0
        assert list(csv.reader(io.StringIO(capsys.readouterr().out))) == [["id"], [name]]
        assert main(["sql", "--config", str(values.config), sql]) == 0
        assert name in capsys.readouterr().out.replace("\n", "")


def test_times_nulls_and_numbers_are_printed_in_each_form(values: Values, capsys: pytest.CaptureFixture[str]) -> None:
    sql = f"select start, mean, sum, final from windows where key = 'pump-07' and start = {START}"
    assert main(["sql", "--config", str(values.config), "--json", sql]) == 0
    assert json.loads(capsys.readouterr().out) == [
        {"start": "2023-11-14T22:14:00.000Z", "mean": 7.5, "sum": None, "final": True}
    ]
    assert main(["sql", "--config", str(values.config), "--csv", sql]) == 0
    assert capsys.readouterr().out == "start,mean,sum,final\r\n2023-11-14T22:14:00.000Z,7.5,,true\r\n"
    assert main(["sql", "--config", str(values.config), sql]) == 0
    assert "1 row" in capsys.readouterr().out
    assert (
        main(["sql", "--config", str(values.config), "--json", "select 'nan'::double as x, [1, 2] as y where false"])
        == 0
    )
    assert json.loads(capsys.readouterr().out) == []


@pytest.mark.parametrize(
    ("text", "part"),
    [
        ("select colour from windows", 'windows has view, measure, key, start, "end"'),
        ("select * from wndows", "The tables are windows, sessions, devices, history, state"),
        ("selec 1", "SQL at character 1 ('selec 1')"),
        ("", "has 0 statements"),
        ("select 1; select 2", "has 2 statements"),
        ("delete from windows", "is no SELECT"),
        ("copy (select 1) to '/tmp/x'", "is no SELECT"),
        ("attach 'x.db'", "is no SELECT"),
        ("set enable_external_access = true", "is no SELECT"),
        ("select * from read_csv('/etc/passwd')", "disabled"),
        ("select * from windows semi join query_table('history') using (key)", "Name the tables in FROM"),
        ("select * from '/etc/passwd'", "Table with name /etc/passwd does not exist"),
        ("select mean + key from windows where key = 'pump-07'", "No function matches"),
        ("select 'a'::int from windows where key = 'pump-07'", "Could not convert"),
        ("select if(range < 3500000, 1, cast('x' || range as int)) from range(4000000)", "Could not convert"),
    ],
)
def test_a_question_that_cannot_be_answered_says_why(ask: Ask, text: str, part: str) -> None:
    with pytest.raises(QuestionError) as caught:
        ask(text)
    assert part in str(caught.value)


def test_a_question_that_is_nested_too_deeply_is_named(ask: Ask) -> None:
    former = sys.getrecursionlimit()
    sys.setrecursionlimit(1_000)  # Python's own; a library of the tests raises it
    try:
        with pytest.raises(QuestionError, match="nested too deeply"):
            ask(f"select {'+'.join('1' * 900)}")
    finally:
        sys.setrecursionlimit(former)


def test_an_error_names_the_columns_of_its_tables_and_nothing_was_read(
    ask: Ask, read: dict[str, int], values: Values, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(QuestionError) as caught:
        ask("select colour from windows")
    assert "sessions has" not in str(caught.value)
    assert read == {}
    assert main(["sql", "--config", str(values.config), "select colour from windows"]) == QuestionError.status == 13
    assert capsys.readouterr().err.startswith("tidemark: QUESTION: ")


@pytest.mark.parametrize(
    ("text", "end_ms"),
    [
        (f"select end from windows where key = 'pump-07' and start = {START} limit 1", T0 + MINUTE),
        (f'select w."end" as end from windows w where end = {START} + interval 1 minute limit 1', T0 + MINUTE),
        (
            f'select case when count > 0 then 1 else 2 end as "one", end from windows where start = {START} limit 1',
            T0 + MINUTE,
        ),
        ("select 'the end' as \"end\" -- the end", None),
    ],
)
def test_the_column_end_is_quoted_where_it_has_to_be(ask: Ask, text: str, end_ms: int | None) -> None:
    [row] = ask(text)
    assert row["end"] == "the end" if end_ms is None else row["end"].timestamp() * 1000 == end_ms


def test_all_tables_and_columns_are_listed_and_described_without_reading_rows(ask: Ask, read: dict[str, int]) -> None:
    names = ["windows", "sessions", "devices", "history", "state"]
    assert [row["table"] for row in ask("show tables")] == names
    for text in ("describe", "show all tables"):
        rows = ask(text)
        assert list(dict.fromkeys(row["table"] for row in rows)) == names
        assert {"table": "windows", "column": "end", "type": "TIMESTAMP WITH TIME ZONE"} in rows
        assert {"table": "devices", "column": "ref.site", "type": "VARCHAR"} in rows
    for name in names:
        [first, *_] = ask(f"describe {name}")
        assert first["column_type"] == "VARCHAR"
    assert read == {}
    assert ask("summarize devices")[0]["count"] == 40


def test_tables_are_listed_while_redis_is_away(values: Values) -> None:
    other = settings.parse(values.document | {"redis": {"url": "redis://127.0.0.1:1/0"}})
    assert len(question.answer(other, "show tables").to_pylist()) == 5


def test_a_wide_row_has_a_line_for_each_field(values: Values, capsys: pytest.CaptureFixture[str]) -> None:
    where = f"where key = 'pump-07' and view = 'device_1m' and start >= {START} order by start"
    assert main(["sql", "--config", str(values.config), f"select key, mean from windows {where}"]) == 0
    assert capsys.readouterr().out.splitlines()[:2] == ["key      mean", "pump-07  7.5"]
    assert main(["sql", "--config", str(values.config), f"select * from windows {where}"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert max(map(len, lines)) <= 80
    assert [line for line in lines if line.startswith("row ")] == ["row 1", "row 2", "row 3"]
    assert "  key            pump-07" in lines or any(line.split() == ["key", "pump-07"] for line in lines)
    assert lines[-1] == "3 rows"


def test_too_many_windows_are_refused_with_what_to_name(ask: Ask, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(live, "MOST", 100)
    with pytest.raises(QuestionError, match=r"looks for up to [\d,]+ windows, the limit is 100. Name a view"):
        ask("select * from windows")
    assert len(ask("select * from windows where key = 'pump-07' and start >= '2023-11-14 22:00:00+00'")) == 3


def test_an_answer_without_end_is_refused_before_it_takes_the_memory_of_the_host(
    ask: Ask, kept: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(columns, "LARGEST", 1 << 24)
    with pytest.raises(QuestionError, match=r"The answer has more than 16 MiB\. Add a condition or a LIMIT"):
        ask("select a.key, b.key from windows a, windows b, range(100000000)")
    assert len(ask("select range from range(1000000)")) == 1_000_000
    monkeypatch.setattr(columns, "LARGEST", 100)
    with pytest.raises(QuestionError, match=r"The question reads more than 100 B\. Name a view, keys or a time"):
        question.answer(kept, "select count(*) from history")


def test_a_question_that_needs_more_memory_than_it_may_have_says_what_to_do(
    ask: Ask, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(question, "MEMORY", "64MiB")
    monkeypatch.setattr(question, "SPILLED", "8MiB")
    with pytest.raises(QuestionError, match=r"^Out of Memory Error.*sort, join and group fewer rows"):
        ask("select repeat(md5(range::text), 30) a from range(150000) order by hash(range), a offset 149999")


def test_a_question_that_takes_too_long_is_ended_by_ctrl_c(values: Values) -> None:
    program = f"""
import os, signal, threading
from service.cli import main
threading.Timer(2, os.kill, (os.getpid(), signal.SIGINT)).start()
os._exit(main(["sql", "--config", {str(values.config)!r}, "select count(*) from range(1000000000), range(1000000)"]))
"""
    command = ["env", "--default-signal=INT", sys.executable, "-c", program]
    ended = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    assert (ended.returncode, ended.stderr) == (130, "")


def test_a_redis_that_is_away_or_empty_is_named(values: Values, prefix: str) -> None:
    redis = values.settings.redis
    for url, name, part in (
        ("redis://127.0.0.1:1/0", prefix, "Redis at 127.0.0.1:1/0 does not answer"),
        (redis.url.get_secret_value(), "nobody", "Check redis.prefix"),
    ):
        other = settings.parse(values.document | {"redis": {"url": url, "prefix": name}})
        with pytest.raises(SinkError) as caught:
            question.answer(other, "select * from devices")
        assert part in str(caught.value)


def test_a_redis_that_accepts_and_is_silent_is_named_within_two_requests(values: Values, prefix: str) -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:
        place = f"127.0.0.1:{silent.getsockname()[1]}/0"
        other = settings.parse(values.document | {"redis": {"url": f"redis://{place}", "prefix": prefix}})
        began = time.monotonic()
        with pytest.raises(SinkError, match=f"^Redis at {place} does not answer: Timeout"):
            question.answer(other, "select * from devices")
    assert time.monotonic() - began < 4 * ANSWERS_S  # the client's own limit is ten seconds


def test_nothing_is_written(redis_server: Redis, values: Values, prefix: str) -> None:
    name = f"reader-{prefix}"
    rights = ["on", ">secret", f"~{prefix}:*", "+@read", "+scan", "+ping", "-@write"]
    values.client.execute_command("ACL", "SETUSER", name, "reset", *rights)
    url = redis_server.url.replace("redis://", f"redis://{name}:secret@")
    reader = settings.parse(values.document | {"redis": {"url": url, "prefix": prefix}})
    try:
        answer = question.answer(
            reader, "select (select count(*) from windows), (select count(*) from sessions), count(*) from devices"
        )
        assert list(answer.to_pylist()[0].values()) == [123, 40, 40]
    except ResponseError as error:  # pragma: no cover - says which command
        pytest.fail(str(error))
    finally:
        values.client.execute_command("ACL", "DELUSER", name)


def test_the_same_from_several_shards(redis_server: Redis, prefix: str, tmp_path: Path) -> None:
    sharded = Values(redis_server, prefix, tmp_path, shards=3)
    total = "select count(*)::int as n, sum(count)::int as c, sum(final::int)::int as f from windows"
    assert question.answer(sharded.settings, total).to_pylist() == [{"n": 123, "c": 246, "f": 82}]
    for table in ("devices", "sessions"):
        assert question.answer(sharded.settings, f"select count(*) n from {table}").to_pylist() == [{"n": 40}]
    assert question.answer(sharded.settings, "select count(*) n from devices where device = 'pump-07'").to_pylist() == [
        {"n": 1}
    ]
    sharded.client.close()


def test_a_view_that_has_changed_is_read_by_the_name_that_its_version_has_in_keys(values: Values, ask: Ask) -> None:
    key = f"{values.prefixes[0]}:meta"
    meta = json.loads(values.client.get(key))
    meta["views"][0] |= {"of": "device"}
    values.client.set(key, json.dumps(meta))
    assert ask("select view, count(*) n from windows group by view order by view") == [
        {"view": "all_1m", "n": 3},
        {"view": "device", "n": 120},
    ]
    assert ask("select count(*) n from windows where view = 'device' and key = 'pump-07'") == [{"n": 3}]


@pytest.fixture
def kept(values: Values, tmp_path: Path) -> Settings:
    """Two days of history of the views by device and over all, of which one window has three revisions and one is compacted."""
    path = tmp_path / "history"
    outlet = Parquet(ParquetOutlet(name="history", kind="parquet", path=str(path), compact_after=2))
    outlet.open(1)
    for batch, (view, name, start, count) in enumerate(
        [
            ("device_1m", "pump-07", T0, 2),
            ("all_1m", "all", T0, 5),
            ("device_1m", 'it\'s "b"', T0 + MINUTE, 1),
            ("device_1m", "pump-07", T0 + 86_400_000, 2),
            ("device_1m", "pump-07", T0, 3),
        ]
    ):
        table = window_table([(view, name, start, [float(value) for value in range(count)])])
        if batch == 4:
            table = table.append_column("revision", pa.array([1], pa.int64()))
        position = Position.of(MicroBatch(1, batch, 0, {"readings": {0: batch}}, {"readings": {0: batch + 1}}))
        outlet.write(Entry(position, tables.windows(table, {view: Shown(("count", "mean"))}, 1, batch, "watermark")))
    document = values.document | {"outlets": [{"name": "history", "kind": "parquet", "path": str(path)}]}
    return settings.parse(document)


@pytest.mark.parametrize(
    ("where", "rows"),
    [
        ("true", 4),
        ("key = 'pump-07'", 2),
        ("view = 'all_1m'", 1),
        (f"start < {START} + interval 1 day", 3),
        (f"start >= {START} + interval 1 day and key = 'pump-07'", 1),
        (f'"end" <= {START} + interval 1 minute', 2),
        ("key = 'it''s \"b\"'", 1),
        ("view = 'nobody'", 0),
        ("start >= '0900-01-01' and start < '290000-01-01'", 4),
    ],
)
def test_the_history_of_an_outlet_has_the_newest_revision_of_each_window(kept: Settings, where: str, rows: int) -> None:
    answer = question.answer(kept, f"select * from history where {where}").to_pylist()
    assert len(answer) == rows
    newest = {(row["key"], row["start"].timestamp() * 1000): (row["count"], row["revision"]) for row in answer}
    assert newest.get(("pump-07", T0), (3, 1)) == (3, 1)
    assert question.answer(kept, f"select count(*) n from history where {where}").to_pylist() == [{"n": rows}]


def test_history_and_live_values_are_asked_together(kept: Settings) -> None:
    text = "select h.count h, w.count w from history h join windows w using (view, measure, key, start) where h.key = 'pump-07'"
    assert question.answer(kept, text).to_pylist() == [{"h": 3, "w": 2}]


def test_without_an_outlet_of_files_there_is_no_history(values: Values) -> None:
    with pytest.raises(SettingsError, match="There is no history"):
        question.answer(values.settings, "select * from history")


def test_local_days_are_asked_for_by_their_times(redis_server: Redis, prefix: str, tmp_path: Path) -> None:
    made = Values(redis_server, prefix, tmp_path)
    day = {"name": "day", "by": ["device"], "window": "1 d", "time_zone": "Asia/Kathmandu", "measures": ["temperature"]}
    made.settings = settings.parse({**made.document, "views": [day]})
    view = made.settings.views[0]
    starts = view.starts(np.array([T0, T0 + 86_400_000, T0 + 2 * 86_400_000]))
    table = window_table([("day", "d1", start, [1.0, 2.0]) for start in starts.tolist()])
    table = table.set_column(table.column_names.index("end"), table.schema.field("end"), pa.array(view.ends(starts)))
    sink = Sink(made.settings, MicroBatch(1, 2, T0 + 2 * 86_400_000, {}, {"readings": {0: 12}}, "v7"))
    sink.write([changed(table)])
    sink.progress()
    assert contract.check(made.client, prefix) == []

    def ask(where: str) -> list[Any]:
        text = f"select local_start from windows where view = 'day' and {where} order by start"
        return [row["local_start"] for row in question.answer(made.settings, text).to_pylist()]

    days = [f"2023-11-{number}T00:00:00+05:45" for number in (15, 16, 17)]
    noon = "TIMESTAMPTZ '2023-11-16 12:00:00+05:45'"
    assert ask("true") == days
    assert ask("final") == days[:2]
    assert ask(f"start >= {noon}") == days[2:]
    assert ask("start >= '9999-12-31'") == []
    assert ask(f'"end" >= {noon}') == days[1:]
    assert ask(f'"end" <= {noon} and start < {noon}') == days[:1]
    made.client.close()
