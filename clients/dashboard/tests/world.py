"""A prefix in Redis as a service writes it (schemas/redis.md of Tidemark), and the service's HTTP answers."""

from __future__ import annotations

import json
import math
import random
import threading
from collections.abc import Iterable
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

SITES = ("aarhus", "bilbao", "cork", "dresden", "espoo", "leeds")
MODELS = {"meter": ("EM-7", "EM-9"), "thermometer": ("T-20", "T-31", "T-40")}
WINDOW, SLIDE, GAP = 60_000, 60_000, 30_000
VIEWS = (("device", ["device"]), ("site", ["site"]), ("type", ["type"]), ("all", []))
MEASURES = ("temperature", "power")
DAY = 86_400_000
HERE = Path(__file__).parent


class World:
    """Devices that send every ten seconds; `step` is a batch of ten seconds. `seed` gives the same fleet and values."""

    def __init__(self, redis: Any, now_ms: int, prefix: str = "tidemark", seed: int = 7) -> None:
        self.redis, self.prefix, self.now = redis, prefix, now_ms // 10_000 * 10_000
        self.random = random.Random(seed)  # noqa: S311 - a fixture is to be predictable
        self.batch, self.epoch, self.offset = 0, 3, 0
        self.devices: dict[str, dict[str, Any]] = {}
        self.windows: dict[tuple[str, str, str, int], list[float]] = {}
        self.meta()

    def name(self, *parts: object) -> str:
        return ":".join([self.prefix, *map(str, parts)])

    def meta(self) -> None:
        lengths = {"window_ms": WINDOW, "slide_ms": SLIDE, "retain_ms": DAY}
        views = [{"name": name, "by": by, "measures": MEASURES, **lengths} for name, by in VIEWS]
        order = {"statistics": ["count", "mean", "min", "max", "longest_gap"], "measures": MEASURES}
        sessions = {"gap_ms": GAP, "max_duration_ms": 3_600_000, "retain_ms": DAY, **order}
        document = {"contract": 3, "shards": 1, "measures": MEASURES, "views": views, "sessions": sessions}
        self.redis.set(self.name("meta"), json.dumps(document))

    def add_view(self, name: str, by: list[str], **more: object) -> None:
        """One more view, with the measures and lengths of the others if none are given."""
        meta = json.loads(self.redis.get(self.name("meta")))
        meta["views"].append({**meta["views"][0], "name": name, "by": by, **more})
        self.redis.set(self.name("meta"), json.dumps(meta))

    def add(self, ids: Iterable[str], **facts: str) -> None:
        """Devices that send from now on."""
        for number, each in enumerate(ids, len(self.devices)):
            kind = "meter" if number % 3 else "thermometer"
            site = SITES[(number * number + number // 5) % len(SITES)]
            model = MODELS[kind][number % len(MODELS[kind])]
            level = 400 + 37 * (number % 11) if kind == "meter" else 14 + number % 9
            self.devices[each] = {
                "facts": {"type": kind, "site": site, "model": model, **facts},
                "level": level,
                "start": self.now,
                "count": 0,
                "measure": "power" if kind == "meter" else "temperature",
                "sends": True,
            }

    def step(self, ids: Iterable[str] | None = None, feed: bool = True) -> None:
        """One batch: each device that sends gives a reading; the watermark follows at a distance of 15 s."""
        self.now += 10_000
        self.batch += 1
        changed: dict[str, list[str]] = {"window": [], "session": [], "device": []}
        pipe = self.redis.pipeline(transaction=False)
        pipe.hset(self.name("progress"), "writing", f"{self.epoch} {self.batch}")
        chosen = [each for each in (ids or self.devices) if self.devices[each]["sends"]]
        touched = set()
        for each in chosen:
            device = self.devices[each]
            wave = math.sin(self.now / 240_000 + hash(device["facts"]["site"]) % 7)
            value = round(device["level"] * (1 + 0.08 * wave + self.random.gauss(0, 0.02)), 2)
            device["count"] += 1
            for view, by in VIEWS:
                key = "|".join(each if column == "device" else device["facts"][column] for column in by) or "all"
                place = (view, device["measure"], key, self.now // WINDOW * WINDOW)
                self.windows.setdefault(place, []).append(value)
                touched.add(place)
            changed["session"].append(self._session(pipe, each, value))
            changed["device"].append(self._device(pipe, each, value))
        changed["window"] += [self._window(pipe, place) for place in touched]
        self.offset += len(chosen)
        for kind, names in changed.items() if feed else ():
            for first in range(0, len(names), 100):
                self._announce(pipe, kind, names[first : first + 100])
        pipe.execute()
        self.progress(feed=feed)

    def progress(self, *, feed: bool = True, **fields: object) -> None:
        """Finish the batch: the watermark is 15 s behind."""
        watermark = self.now - 15_000
        pipe = self.redis.pipeline(transaction=False)
        pipe.hdel(self.name("progress"), "writing")
        offsets = json.dumps({"readings": {"0": self.offset // 2, "1": self.offset - self.offset // 2}})
        values = {
            **self.stamp(),
            "watermark": watermark,
            "final": watermark,
            "offsets": offsets,
            "reference": "733d9dab",
        }
        pipe.hset(self.name("progress"), mapping={**values, **fields})
        if feed:
            self._announce(pipe, "progress", [self.name("progress")])
        pipe.execute()

    def stamp(self) -> dict[str, object]:
        return {"epoch": self.epoch, "batch": self.batch, "updated": self.now}

    def become(self, device: str, status: str, **fields: object) -> None:
        """Another status of a device, announced."""
        session = {} if status != "offline" else {"session": ""}
        self.redis.hset(self.name("device", device), mapping={"status": status, **session, **fields})
        self._announce(self.redis, "device", [self.name("device", device)])

    def correct(self, view: str, measure: str, key: str, start: int) -> None:
        """A correction of a final window."""
        name = self.name("window", view, measure, key, start)
        self.redis.hincrby(name, "revision", 1)
        self._announce(self.redis, "window", [name], revision=1)

    def _window(self, pipe: Any, place: tuple[str, str, str, int]) -> str:
        view, measure, key, start = place
        values = self.windows[place]
        mean = sum(values) / len(values)
        fields = {
            "start": start,
            "end": start + WINDOW,
            "count": len(values),
            "sum": repr(sum(values)),
            "mean": repr(mean),
            "min": repr(min(values)),
            "max": repr(max(values)),
            "stddev": repr(math.sqrt(sum((each - mean) ** 2 for each in values) / len(values))),
            "first": max(start, self.now - 10_000 * (len(values) - 1)),
            "last": self.now,
        }
        name = self.name("window", view, measure, key, start)
        pipe.hset(name, mapping={**fields, **self.stamp()})
        pipe.pexpire(name, DAY)
        pipe.zadd(self.name("keys", view), {key: start}, gt=True)
        return name

    def _session(self, pipe: Any, device: str, value: float) -> str:
        known = self.devices[device]
        measure, start, count = known["measure"], known["start"], known["count"]
        fields: dict[str, object] = {
            "start": start,
            "last": self.now,
            "count": count,
            "duration": self.now - start,
            "state": "open",
            "reason": "",
            "closed_by": "",
            "revision": 0,
        }
        for name in MEASURES:
            fields[f"{name}.count"] = count if name == measure else 0
        fields |= {f"{measure}.mean": value, f"{measure}.min": value, f"{measure}.max": value}
        fields[f"{measure}.longest_gap"] = 12.5
        name = self.name("session", device, start)
        pipe.hset(name, mapping={**fields, **self.stamp()})
        pipe.zadd(self.name("sessions", device), {str(start): start})
        return name

    def _device(self, pipe: Any, device: str, value: float) -> str:
        known = self.devices[device]
        facts = {f"ref.{column}": text for column, text in known["facts"].items()}
        fields = {
            "status": "online",
            "last_seen": self.now,
            "session": known["start"],
            "reference": "733d9dab",
            **facts,
        }
        name = self.name("device", device)
        pipe.hset(name, mapping={**fields, known["measure"]: value, f"{known['measure']}.at": self.now, **self.stamp()})
        return name

    def _announce(self, pipe: Any, kind: str, names: list[str], **more: object) -> None:
        entry = {"kind": kind, "keys": json.dumps(names), "batch": self.batch, "epoch": self.epoch, **more}
        pipe.xadd(self.name("changes"), entry, maxlen=10_000, approximate=True)


def history(
    points: list[tuple[int, float, dict[str, int]]], begin_ms: int, marks: Iterable[Any] = ()
) -> dict[str, Any]:
    """What the service answers at /history: points as time, rate and rejects."""
    columns = ("at_ms", "rate", "lag", "lag_age_s", "p50_s", "p99_s", "batch_s", "delay_s", "rejects")
    rows_ = [[at_ms, rate, 5, 0.1, 0.5, 1.25, 0.75, 9.0, rejects] for at_ms, rate, rejects in points]
    start = {"kind": "start", "text": "The process starts", "at_ms": begin_ms, "until_ms": begin_ms}
    recent = {"since_ms": points[-1][0] - 480_000, "p50_s": 0.5, "p99_s": 1.25, "rejects": {"late": 4, "early": 0}}
    return {
        "at_ms": points[-1][0],
        "columns": columns,
        "recent": recent,
        "total": {"rejects": {"late": 9, "early": 0}},
        "hour": {"every_s": 10, "points": rows_},
        "day": {"every_s": 240, "points": rows_[-1:]},
        "marks": [start, *marks],
    }


class Answers:
    """The service's HTTP port. `status` and `metrics` are what it answers; `close` is the end of the service.

    With `query`, only requests that end with it get these answers.
    """

    def __init__(self, port: int = 0, query: str = "") -> None:
        self.status: dict[str, Any] = json.loads((HERE / "status.json").read_text(encoding="utf-8"))
        self.metrics = (HERE / "metrics.txt").read_text(encoding="utf-8")
        self.alerts: list[dict[str, Any]] = []
        self.conditions: list[dict[str, Any]] = []
        self.history = history([(1_800_000_000_000, 1.0, {})], 1_799_000_000_000)
        self.encodings: set[str] = set()
        answers = self

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                answers.encodings.add(self.headers["Accept-Encoding"])
                alerts = {"status": "success", "data": {"alerts": answers.alerts}}
                bodies = {
                    f"/status{query}": json.dumps(answers.status),
                    f"/metrics{query}": answers.metrics,
                    f"/conditions{query}": json.dumps({"conditions": answers.conditions}),
                    "/api/v1/alerts": json.dumps(alerts),
                    f"/history{query}": json.dumps(answers.history),
                }
                body = bodies.get(self.path, "").encode()
                self.send_response(200 if body else 404)
                self.send_header("Content-Length", str(len(body)))
                self.end_headers()
                self.wfile.write(body)

            def log_message(self, format: str, *args: object) -> None:  # noqa: A002
                """Log nothing."""

        self._server = ThreadingHTTPServer(("127.0.0.1", port), Handler)
        self._server.daemon_threads = True
        self.url = f"http://127.0.0.1:{self._server.server_address[1]}"
        self._thread = threading.Thread(target=self._server.serve_forever, kwargs={"poll_interval": 0.05})
        self._thread.start()

    def need(self, alert: str, state: str, summary: str, severity: str = "warn") -> None:
        """One more condition, as the service's /conditions has it."""
        alerts = [{"labels": {}, "state": state, "since_ms": 0, "value": 1.0, "summary": summary}]
        condition = {"alert": alert, "state": state, "severity": severity, "for_s": 600.0, "alerts": alerts}
        self.conditions = [*self.conditions, condition]

    def set(self, sample: str, value: float) -> None:
        """Another value of a sample, named as /metrics has it."""
        lines = [line for line in self.metrics.splitlines() if not line.startswith(f"{sample} ")]
        self.metrics = "\n".join([*lines, f"{sample} {value}", ""])

    def close(self) -> None:
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()
