"""A transcript: steps of records that go in, and all that changes because of them.

    name: a gap ends a session
    views: [device]                     # the views that are looked at, by default [device]
    steps:
      - add:
          - a 0 20                      # device, event time (s), temperature
          - a 5 22 humidity=40 @7 >1    # another measure; the broker's time (s), by default the event time; partition 1, else 0
          - '{"device_id": 1} @7'       # any text; <a> stands for device a's name, <t5> for the time 5 s in ms, <s5> in s
      - '{"at": <s5>} @5 #meters'   # a record of another topic, by default "readings"
      - '[{}, {}] @5 #meters gzip'  # a record that is compressed
      - '{"device_id": "<a>"} @5 #messages ^2'  # behind the id of a schema; what is JSON on `messages` becomes Protobuf
        expect:
          window device/temperature/a/0: {count: 2, mean: 21, final: false}
          session a/0: {state: open, count: 2}
          device a: {status: online, temperature: 22}
          reject 3: no_time             # the third record of the transcript
          reject 6#1: no_device         # element 1 of the array in the sixth one
          left kept/temperature/a/0: {count: 2, revision: 0}    # the newest row of a window in the outlet, of the view `kept`
          told a/status: {status: online, was: offline, at: 5, why: reading}    # in the outlet of states, with the view `states`
        watermark: -20                  # in s; only checked when it is given
      - change: {hot: {by: [device], window: 1 m}}      # keys of views in the settings; null removes a view
        expect:
          view hot: {keys: hot, next: null, complete_from: null}
      - silent: 40                      # nothing arrives for 40 s
        expect: {...}

A step is any of these, in this order:

    restart  the service is stopped and started again; executors without a service do nothing
    change   the settings of views are changed, and the service has them
    add      records arrive and are read
    unread   records arrive, and nothing is read until the next step
    silent   so many seconds pass. The clock stands else: it shows the latest time of the broker's, until it is moved on
    replay   another run reads all records of the transcript at once, and then it has been silent for `idle_after` (10 s) when
             the clock shows what it shows now: what it ends with, but for revisions, in place of what there is. The last step

A transcript of days and months has `at`, the time in UTC at which it begins, later than all before: `at: 2040-03-24T20:00Z`.
Times of its readings and windows are times in UTC, too (`a 2040-03-24T23:00Z 20`), and it looks at windows and rejects only.

`expect` names every window, session, device and reject that is new or different after the step, with as many of its fields
as matter; output that nobody expected is an error. A window is `null` when its view has ended. A transcript that changes views
also names these: the view's name in keys, that of a version that is to follow, and from when on windows have all readings. It
changes views of its own: they stay. `site` gives devices their site in the reference, `interval` the seconds in
which they are expected to send. Times are seconds from the transcript's own origin, a whole hour. All transcripts share the
settings in profile.py and one timeline.
"""

import gzip
import json
import re
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import yaml
from google.protobuf import json_format

from load.fleet import protobuf
from load.judge.statistics import DEFAULT, ORDERED, PLAIN

ORIGIN_MS = 2_208_988_800_000
"""In 2040."""
HOUR_MS = 3_600_000

Fields = Mapping[str, Any]
Output = Mapping[str, Fields]
"""What there is after a step: `window <view>/<measure>/<key>/<s>`, `session <device>/<s>`, `device <device>` and `reject <n>`
with their fields."""

ENDLESS = "ever"
"""The start of the one window of a view without windows: `window <view>/<measure>/<device>/ever`."""

OTHERS = tuple(name for name in PLAIN if name not in DEFAULT)
"""The statistics that a window of the view `every` has in addition; one that is absent is null."""

SESSION_ORDER = ("increase", "resets", "longest_gap", "integral", "coverage")
"""The statistics of order that a session shows of its temperature; one that is absent is not there."""

FIELDS = {
    "window": (
        "count",
        "mean",
        "min",
        "max",
        "stddev",
        *OTHERS,
        *ORDERED,
        "final",
        "closed_by",
        "revision",
        "complete_from",
        "local_start",
    ),
    "left": ("count", "mean", "min", "max", "stddev", "closed_by", "revision"),
    "told": ("status", "was", "at", "why"),
    "session": ("state", "count", "last", "reason", "closed_by", "revision", *SESSION_ORDER),
    "device": (
        "status",
        "last_seen",
        *(name for measure in ("temperature", "humidity", "power") for name in (measure, f"{measure}.status")),
    ),
    "reject": ("reason",),
    "view": ("keys", "next", "complete_from"),
}
SHORT = {
    "window": "count",
    "left": "count",
    "told": "status",
    "session": "state",
    "device": "status",
    "reject": "reason",
    "view": "keys",
}
"""The field that is meant when an item is given as a plain value."""

_READING = re.compile(
    r"(\w+) (-?[\d.]+|\d{4}-[\dT:-]+Z)(?: (-?[\d.]+(?:e\d+)?|NaN|Infinity))?((?: \w+=\S+)*)(?: @(-?[\d.]+))?(?: >(\d))?"
)
_TEXT = re.compile(r"(.*?)(?: @(-?[\d.]+))?(?: #(\w+))?(?: \^(\d+))?( gzip)?", re.DOTALL)


def reject(number: int, index: int | None) -> str:
    """The item of a reject: of the record with this number, or of one reading of its array."""
    return f"reject {number}" if index is None else f"reject {number}#{index}"


def value_of(name: str, text: str | bytes) -> Any:
    """The value of a field of a window as Redis has it: a number, or the text of a local time."""
    if name == "local_start":
        return text.decode() if isinstance(text, bytes) else text
    return json.loads(text)


def view_of(item: str) -> str:
    """The view of a window's item, by its name in keys; "" for other items."""
    kind, _, name = item.partition(" ")
    return name.partition("/")[0] if kind == "window" else ""


class TranscriptError(Exception):
    """A transcript that cannot be read, or whose output is not as it says: the text names the step."""


@dataclass(frozen=True, slots=True)
class Record:
    """`value` as it is sent, `at_ms` the broker's time."""

    value: bytes
    at_ms: int
    partition: int = 0
    topic: str = "readings"


@dataclass(frozen=True, slots=True)
class Step:
    """An action, and the output that it changes."""

    change: Mapping[str, Any] = field(default_factory=dict)
    add: tuple[Record, ...] = ()
    unread: tuple[Record, ...] = ()
    silent_ms: int = 0
    replay: bool = False
    expect: Output = field(default_factory=dict)
    watermark: float | None = None
    restart: bool = False


@dataclass(frozen=True, slots=True)
class Transcript:
    """The `number`-th of a run, whose hour begins at `origin_ms`."""

    name: str
    place: str
    number: int
    views: tuple[str, ...]
    sites: Mapping[str, str]
    intervals: Mapping[str, int]
    steps: tuple[Step, ...] = field(default=())
    at_ms: int | None = None

    @property
    def origin_ms(self) -> int:
        """Where its time begins."""
        return self.at_ms if self.at_ms is not None else ORIGIN_MS + self.number * HOUR_MS

    def device(self, name: str) -> str:
        """A device of this transcript's own."""
        return f"{self.number}.{name}"

    @property
    def changes_views(self) -> bool:
        """Whether views change in a step."""
        return any(step.change for step in self.steps)

    def mine(self, output: Output) -> Output:
        """Of the items of all transcripts, in the names of the settings, those that this one looks at, in its own."""
        return dict(self._mine(output))

    def _mine(self, output: Output) -> Iterator[tuple[str, Fields]]:
        prefix = f"{self.number}."
        for item, fields in output.items():
            kind, _, name = item.partition(" ")
            if kind == "reject":
                yield item, fields
            elif kind == "view":
                if self.changes_views and name in self.views:
                    yield item, self._marked(fields)
            elif kind in {"window", "left"}:
                view, measure, key, start = _window(name)
                shown = self._start(key, int(start)) if view.partition("@")[0] in self.views else ""
                if shown:
                    yield f"{kind} {view}/{measure}/{key.removeprefix(prefix)}/{shown}", self._marked(fields)
            elif self.at_ms is not None:
                continue
            elif kind == "told":
                if "states" in self.views and name.startswith(prefix):
                    yield f"told {name.removeprefix(prefix)}", {**fields, "at": self.seconds(fields["at"])}
            elif name.startswith(prefix):
                device, slash, start = name.removeprefix(prefix).partition("/")
                yield (
                    f"{kind} {device}{slash}{self.seconds(int(start)):g}" if slash else f"{kind} {device}",
                    {
                        key: self.seconds(value) if key in ("last", "last_seen") else value
                        for key, value in fields.items()
                    },
                )

    def _start(self, key: str, ms: int) -> str:
        """The start of a window as this transcript writes it, "" for a window of another one."""
        is_own = key.startswith(f"{self.number}.")
        if self.at_ms is not None or ms == 0:
            return "" if not is_own else _time(ms) if ms else ENDLESS
        seconds = self.seconds(ms)
        return f"{seconds:g}" if -HOUR_MS / 2000 <= seconds < HOUR_MS / 2000 else ""

    def _marked(self, fields: Fields) -> Fields:
        """With `complete_from` as a time, or in seconds if it is in the hour of this transcript."""
        mark = fields.get("complete_from")
        if mark is None:
            return fields
        seconds = self.seconds(mark)
        shown = _time(mark) if self.at_ms is not None else seconds if abs(seconds) < HOUR_MS / 2000 else None
        return {**fields, "complete_from": shown}

    def seconds(self, ms: int) -> float:
        """Since the origin."""
        return (ms - self.origin_ms) / 1000


def changes(before: Output, after: Output) -> Output:
    """Return new and changed values. A missing session was merged into another one; the view of a missing window has ended."""
    changed = {item: fields for item, fields in after.items() if before.get(item) != fields}
    gone = [item for item in before if item not in after]
    lacking: dict[str, Fields] = {item: {"state": "merged"} for item in gone if item.startswith("session ")}
    lacking |= {item: {SHORT[kind]: None} for item in gone if (kind := item.partition(" ")[0]) in {"window", "view"}}
    return {**changed, **{item: fields for item, fields in lacking.items() if before[item] != fields}}


def judge(transcript: Transcript, number: int, changed: Output, watermark_ms: int | None) -> None:
    """Raise TranscriptError unless `changed`, the changes of step `number` (from 0), is what the transcript says."""
    step = transcript.steps[number]
    problems = [f"unexpected: {item}: {dict(changed[item])}" for item in changed if item not in step.expect]
    for item, fields in step.expect.items():
        if item not in changed:
            problems.append(f"missing: {item}: {dict(fields)}")
        else:
            problems += [
                f"{item}: {name} is {changed[item].get(name)!r}, expected {value!r}"
                for name, value in fields.items()
                if not _same(changed[item].get(name), value)
            ]
    if step.watermark is not None and watermark_ms != transcript.origin_ms + round(step.watermark * 1000):
        shown = None if watermark_ms is None else transcript.seconds(watermark_ms)
        problems.append(f"the watermark is {shown}, expected {step.watermark}")
    if problems:
        msg = f"{transcript.place}: {transcript.name}: step {number + 1}: " + "; ".join(problems)
        raise TranscriptError(msg)


def _same(actual: object, expected: object) -> bool:
    if isinstance(actual, int | float) and isinstance(expected, int | float):
        return abs(actual - expected) <= 1e-9 * max(1.0, abs(expected))
    return actual == expected


class _Loader(yaml.SafeLoader):
    """Refuses a key that occurs twice in a mapping: YAML takes the last one, and the first expectation would be gone."""

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Any, Any]:
        keys = [key.value for key, _ in node.value]
        if twice := sorted({key for key in keys if keys.count(key) > 1}):
            raise yaml.MarkedYAMLError(problem=f"keys that occur twice: {twice}", problem_mark=node.start_mark)
        return super().construct_mapping(node, deep)


def load(*files: Path) -> list[Transcript]:
    """All transcripts of the files, numbered through. Raises TranscriptError, naming file and transcript."""
    transcripts: list[Transcript] = []
    for path in files:
        try:
            documents = list(yaml.load_all(path.read_text(encoding="utf-8"), _Loader))
        except yaml.YAMLError as error:
            raise TranscriptError(f"{path.name}: {error}") from error
        for document in documents:
            try:
                transcripts.append(_transcript(document, path.name, len(transcripts)))
            except (KeyError, TypeError, ValueError, AttributeError) as error:
                name = document.get("name") if isinstance(document, dict) else document
                raise TranscriptError(f"{path.name}: {name}: {type(error).__name__}: {error}") from error
    names = [each.name for each in transcripts]
    if len(set(names)) != len(names):
        raise TranscriptError(f"names occur twice: {sorted({name for name in names if names.count(name) > 1})}")
    return transcripts


def _transcript(document: dict[str, Any], place: str, number: int) -> Transcript:
    _known(document, "name", "views", "site", "interval", "at", "steps")
    made = Transcript(
        document["name"],
        place,
        number,
        tuple(document.get("views", ["device"])),
        document.get("site", {}),
        document.get("interval", {}),
        at_ms=_ms(str(document["at"])) if "at" in document else None,
    )
    steps = tuple(_step(made, step) for step in document["steps"])
    if any(step.replay for step in steps[:-1]):
        raise ValueError("only the last step may be a replay")
    return replace(made, steps=steps)


def _step(made: Transcript, step: dict[str, Any]) -> Step:
    _known(step, "restart", "change", "add", "unread", "silent", "replay", "expect", "watermark")
    if not step.keys() & {"change", "add", "unread", "silent", "replay"}:
        raise ValueError(f"nothing happens in the step {step}")
    add, unread = (tuple(_record(made, text) for text in step.get(name, ())) for name in ("add", "unread"))
    expect = {item: _fields(item, value) for item, value in (step.get("expect") or {}).items()}
    silent_ms = round(step.get("silent", 0) * 1000)
    change, replay = step.get("change", {}), step.get("replay", False)
    is_restarted = bool(step.get("restart", False))
    return Step(change, add, unread, silent_ms, replay, expect, step.get("watermark"), is_restarted)


def _fields(item: str, value: Any) -> Fields:
    kind = item.split(" ", maxsplit=1)[0]
    fields = value if isinstance(value, dict) else {SHORT[kind]: value}
    _known(fields, *FIELDS[kind])
    return fields


def _known(mapping: Mapping[str, Any], *names: str) -> None:
    if unknown := set(mapping) - set(names):
        raise ValueError(f"{sorted(unknown)}: allowed are {', '.join(names)}")


def _record(transcript: Transcript, text: str) -> Record:
    def ms(seconds: str) -> int:
        return transcript.origin_ms + round(float(seconds) * 1000)

    if match := _READING.fullmatch(text):
        device, at, temperature, more, broker, partition = match.groups()
        at = str((_ms(at) - transcript.origin_ms) / 1000) if at.endswith("Z") else at
        fields = [f'"device_id": "{transcript.device(device)}"', f'"event_time": {ms(at)}']
        measures = [f"temperature={temperature}"] if temperature else []
        fields += ['"{}": {}'.format(*each.split("=")) for each in (*measures, *more.split())]
        return Record(f"{{{', '.join(fields)}}}".encode(), ms(broker or at), int(partition or 0))
    match = _TEXT.fullmatch(text)
    assert match is not None  # noqa: S101
    value = re.sub(r"<t(-?[\d.]+)>", lambda at: str(ms(at[1])), match[1])
    value = re.sub(r"<s(-?[\d.]+)>", lambda at: str(ms(at[1]) / 1000), value)
    value = re.sub(r"<(\w+)>", lambda name: transcript.device(name[1]), value)
    content = gzip.compress(value.encode(), mtime=0) if match[5] else value.encode()
    topic = match[3] or "readings"
    if match[4] is not None:
        content = _framed(content, int(match[4]), topic)
    return Record(content, ms(match[2] or "0"), topic=topic)


def _ms(text: str) -> int:
    return int(datetime.fromisoformat(text).timestamp() * 1000)


def _window(name: str) -> tuple[str, str, str, str]:
    """View, measure, key and start of an item; a key may have a /."""
    view, measure, rest = name.split("/", 2)
    key, _, start = rest.rpartition("/")
    return view, measure, key, start


def _time(ms: int) -> str:
    text = datetime.fromtimestamp(ms / 1000, UTC).isoformat(timespec="milliseconds")
    return text.removesuffix("+00:00").removesuffix(".000").removesuffix(":00") + "Z"


def _framed(content: bytes, number: int, topic: str) -> bytes:
    if topic != "messages":
        return b"\0" + number.to_bytes(4, "big") + content
    with suppress(json_format.ParseError):
        content = json_format.Parse(content, protobuf.message()).SerializeToString()
    return protobuf.framing(number) + content
