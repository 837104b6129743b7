"""May a row replace the stored value of its key? All cases, by publish.lua on a real Redis and by plain Python."""

import json
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from itertools import product
from typing import Any

import pytest
import yaml

from load.servers.redis import Redis
from service.micro_batch import MicroBatch
from service.publication.closed_sink import ClosedSink, servers
from service.publication.policy import WritePolicy
from service.publication.rows import DEVICE, SCRIPT, SESSION, WINDOW, Rows, Stamp, script_keys
from service.redis.keys import Keys
from tests.outputs import settings
from tests.verdict import CASES, Clock, Value, verdict

pytestmark = pytest.mark.integration

KINDS = {"window": WINDOW, "session": SESSION, "device": DEVICE}
END = 1000
PARTLY = {"views": {"v": (60_000, "")}, "partly": True}


@dataclass(frozen=True)
class Case:
    kind: str
    stored: Value | None
    row: Value
    clock: Clock


def cases() -> Iterator[tuple[str, str, Case]]:
    """Name and verdict of each case in CASES."""
    for group, of in yaml.safe_load(CASES.read_text()).items():
        kind = "window" if group == "endless" else group.split()[-1]
        for each in of["cases"]:
            clock = {**of.get("clock", {}), **each.get("clock", {})}
            clock["idle_at"] = tuple(clock.get("idle_at", (2, 4)))
            case = Case(kind, each.get("stored"), {**of["row"], **each.get("row", {})}, Clock(**clock))
            yield f"{group}: {each['is']}", each["verdict"], case


class Store:
    """A Redis in which one row after another meets one stored value."""

    def __init__(self, part: Redis, prefix: str) -> None:
        self.settings, self.keys, self.client = settings(part.url, prefix), Keys(prefix), part.client()
        self._names = {"session": f"{prefix}:session:d:7", "device": f"{prefix}:device:d"}
        self._names["window"] = f"{prefix}:window:v:m:k:7"
        self._sink = ClosedSink(
            self.settings, MicroBatch(2, 5, 0, {}, {}), servers(self.settings), policy=WritePolicy.correct(1, {0: ""})
        )

    def play(self, case: Case) -> str:
        """Return the verdict as readers see it: by the reply, and by the revision."""
        client, keys, name = self.client, self.keys, self._names[case.kind]
        clock, stored = case.clock, case.stored
        progress = {"epoch": clock.epoch, "batch": clock.batch, "final": clock.final, "idle": clock.idle}
        progress |= {"idle_epoch": clock.idle_at[0], "idle_batch": clock.idle_at[1]}
        progress |= {"settled": json.dumps({"v": clock.settled, "other": 9 * END})} if clock.settled >= 0 else {}
        with client.pipeline() as pipe:
            pipe.mset({keys.epoch: clock.epoch, keys.correction: 1})
            pipe.delete(name, keys.progress, keys.rebuild, keys.republish)
            pipe.hset(keys.progress, mapping=progress)
            if clock.rebuilding:
                pipe.set(keys.rebuild, "1 1 1")
            if stored is not None:
                pipe.hset(name, mapping={**stored, "revision": 3})
            pipe.execute()
        correct = clock.policy == "correct"
        answer = self._correct(case, name) if correct else self._publish(case, name)
        after = client.hgetall(name)
        if answer == "write" and stored is not None and after.get("revision") == "4":
            answer = "revise"
        if answer in {"write", "revise"}:
            assert {field: after.get(field, "") for field in case.row} == {k: str(v) for k, v in case.row.items()}
        elif stored is not None and answer != "keep":
            assert after == {**{field: str(value) for field, value in stored.items()}, "revision": "3"}
        return answer

    def _rows(self, case: Case, name: str) -> Rows:
        shared: dict[str, Any] = {}
        policy = case.clock.policy
        if case.kind == "window":
            shared = {**PARTLY, "again": policy != "stream", "complete": policy != "stream", "last": policy == "fill"}
            shared["endless"] = "complete_from" in case.row
            shared["behind"] = case.clock.behind
        if case.kind == "session":
            shared["list_ttl"] = 60_000
        fields: dict[str, Any] = {name: [str(value).encode()] for name, value in case.row.items()}
        if case.kind == "session":
            fields |= {"start": [b"7"], "merged_into": [b"6" if case.row["state"] == "merged" else None]}
        if case.kind == "device":
            measures = {"end": [b"1"], "state": [b"closed"], "count": [b"9"]}  # may have any name
            fields |= {"session": [None], **measures}
        flags = {name: value for name, value in shared.items() if value is not False}
        devices: list[bytes | None] = [b"d"] if case.kind == "device" else []
        return Rows(KINDS[case.kind], [name.encode()], [60_000], fields, devices, flags)

    def _publish(self, case: Case, name: str) -> str:
        stamp = Stamp(str(case.clock.epoch), str(case.clock.batch), "1", 1000, 1000)
        [(step, arguments)] = self._rows(case, name).calls(stamp, 10)
        keys = script_keys(self.keys)
        counts = self.client.eval(SCRIPT, len(keys), *keys, step, arguments)
        return ["write", "keep", "older", "closed"][counts[:4].index(1)]

    def _correct(self, case: Case, name: str) -> str:
        return self._sink.write([self._rows(case, name)]).outcomes[name.encode()][0]


@pytest.fixture
def store(redis_server: Redis, prefix: str) -> Iterator[Store]:
    made = Store(redis_server, prefix)
    yield made
    made.client.close()


def test_each_case_of_the_table_has_its_verdict_in_redis_and_in_plain_python(store: Store) -> None:
    table = {name: (wanted, case) for name, wanted, case in cases()}
    wanted = {name: each for name, (each, _) in table.items()}
    assert {name: verdict(c.kind, c.stored, c.row, c.clock) for name, (_, c) in table.items()} == wanted
    assert {name: store.play(case) for name, (_, case) in table.items()} == wanted


def _all(**of: Iterable[Any]) -> list[dict[str, Any]]:
    return [dict(zip(of, values, strict=True)) for values in product(*of.values())]


def _without(value: Mapping[str, Any], name: str, nothing: Any) -> dict[str, Any]:
    return {k: v for k, v in value.items() if (k, v) != (name, nothing)}


def _combinations(kind: str) -> Iterator[Case]:
    known = {"epoch": (1, 2, 3), "batch": (4, 5, 6)}
    state = [{"state": "open", "closed_by": ""}, {"state": "merged", "closed_by": ""}]
    state += [{"state": "closed", "closed_by": closed_by} for closed_by in ("watermark", "idle")]
    if kind == "window":
        stored = [
            _without(each, "complete_from", 0)
            for each in _all(**known, count=(1, 2, 3), end=(END, 2 * END), complete_from=(0, 7))
        ]
        rows: list[dict[str, Any]] = [{"count": 2, "end": END}]
        clocks = _all(final=(-1, END), policy=("stream", "republish", "fill"))
        clocks += _all(idle=(END, 2 * END), idle_at=((2, 4), (1, 9)), policy=("stream", "fill"))
        clocks += _all(settled=(END, 2 * END), idle=(-1, END), policy=("stream", "fill"))
    elif kind == "endless":
        stored = _all(**known, count=(1, 2, 3), end=(9 * END,), complete_from=(6, 7, 8))
        rows = [{"count": 2, "end": 9 * END, "complete_from": 7}]
        clocks = _all(rebuilding=(False, True), policy=("stream", "republish"))
    elif kind == "session":
        stored = [{**a, **b} for a, b in product(_all(**known, count=(1, 2, 3), last=(20,)), state)]
        rows = [{"count": 2, "last": 20, **each} for each in state]
        clocks = [{}]
    elif kind == "device":
        stored = _all(**known, last_seen=(10, 20, 30), status=("online", "offline"))
        rows, clocks = [{"last_seen": 20, "status": "online"}], [{}]
    elif kind == "corrected window":
        stored = _all(**known, count=(1, 2, 3), end=(END, 2 * END), max=(9, 8), sum=(12, 12.000000001, 13))
        rows = [{"count": 2, "end": END, "max": 9, "sum": 12}]
        clocks = _all(final=(END, 2 * END), policy=("correct",))
    else:
        fields = _all(**known, count=(1, 2, 3), last=(20,), reason=("gap", "max_duration"))
        stored = [{**a, **b} for a, b in product(fields, state)]
        rows = [{"count": 2, "last": 20, "reason": "gap", **each} for each in state[1:3]]
        clocks = [{"policy": "correct"}]
    for each, row, clock in product([None, *stored], rows, clocks):
        yield Case("window" if kind == "endless" else kind.rsplit(maxsplit=1)[-1], each, row, Clock(**clock))


@pytest.mark.parametrize("kind", ["window", "endless", "session", "device", "corrected window", "corrected session"])
def test_redis_decides_every_combination_as_plain_python_does(store: Store, kind: str) -> None:
    wrong = [
        (case, found, wanted)
        for case in _combinations(kind)
        if (found := store.play(case)) != (wanted := verdict(case.kind, case.stored, case.row, case.clock))
    ]
    assert wrong == []
