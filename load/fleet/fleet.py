"""A fleet of devices that a reader would believe, computed and not stored: every reading is a function of the seed.

The k-th reading of a device depends on (seed, device, k) alone, so any cut of time into pieces gives the same readings,
and two runs with one seed differ in nothing but the clock they start at. Model time is in milliseconds since the start
of a run; a reading's event time is model time + the run's start + the device's clock error - its delay on the way.

Outsiders are readings that a service must not admit as they stand (and duplicates, which it must). Each is far from any
limit a service could sensibly have, so that what should become of it does not depend on where batches are cut.
"""

import contextlib
import enum
import sqlite3
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import date, timedelta
from pathlib import Path

import numpy as np
import numpy.typing as npt

Floats = npt.NDArray[np.float64]
Ints = npt.NDArray[np.int64]
Hashes = npt.NDArray[np.uint64]

MEASURES = ("temperature", "humidity", "power", "vibration")
# What an ordinary value lies within: outside it, a service may call a value impossible.
RANGES: Mapping[str, tuple[float, float]] = {
    "temperature": (-60.0, 120.0),
    "humidity": (0.0, 100.0),
    "power": (0.0, 20_000.0),
    "vibration": (0.0, 50.0),
}
HOUR_MS = 3_600_000
DAY_MS = 24 * HOUR_MS


class Kind(enum.IntEnum):
    """Kind of a reading, in the record's header `kind` for all but ORDINARY."""

    ORDINARY = 0
    DUPLICATE = 1  # sent twice, byte for byte; both are to be counted
    LATE = 2  # six hours behind and more
    AHEAD = 3  # a day ahead
    YEAR_2099 = 4
    RANDOM = 5  # random bytes
    TRUNCATED = 6  # cut in the middle
    TRAILING = 7  # bytes after the end
    UNKNOWN_SCHEMA = 8  # a schema id nobody knows; in JSON a string instead of an object
    HUGE_LENGTH = 9  # a string that claims 2^40 bytes; in JSON an unterminated string
    NULL_VALUE = 10  # no value at all
    NOT_A_NUMBER = 11  # NaN in every measure it has
    OUT_OF_RANGE = 12  # 1e9 in every measure it has
    NO_DEVICE = 13  # an empty device id
    UNKNOWN_DEVICE = 14  # a well-formed reading of a device that is not in the reference
    OVERSIZED = 15  # 70,000 bytes, more than the 64 KiB that a service admits by default


# Dates as text: sqlite-jdbc does not read a DATE column that holds text.
REFERENCE_TABLE = "create table devices (device_id text primary key, type text, site text, model text, installed text)"
REFERENCE_QUERY = "select device_id, type, site, model, installed from devices"

# One in a hundred readings, as the faults' "1 % of traffic"; duplicates on top.
SHARES: Mapping[Kind, float] = {Kind.DUPLICATE: 0.005, **{kind: 0.01 / 14 for kind in Kind if kind > Kind.DUPLICATE}}


@dataclass(frozen=True, slots=True)
class DeviceType:
    """A kind of device; `measures` maps a name to (base, spread of the devices' bases, daily swing, noise)."""

    name: str
    share: float
    interval_ms: int
    models: tuple[str, ...]
    measures: Mapping[str, tuple[float, float, float, float]]


TYPES = (
    DeviceType(
        "thermostat",
        0.45,
        10_000,
        ("TH-100", "TH-200"),
        {"temperature": (21, 1.5, 2, 0.15), "humidity": (45, 6, 5, 0.8)},
    ),
    DeviceType("meter", 0.25, 5_000, ("EM-3", "EM-7"), {"power": (1500, 500, 900, 40)}),
    DeviceType(
        "pump",
        0.15,
        2_000,
        ("PX-40", "PX-60", "PX-90"),
        {"temperature": (48, 4, 3, 0.4), "vibration": (2.5, 0.6, 0.3, 0.12)},
    ),
    DeviceType("freezer", 0.10, 15_000, ("FR-2",), {"temperature": (-19, 1, 0.8, 0.2), "power": (140, 20, 15, 5)}),
    DeviceType("weather", 0.05, 30_000, ("WX-1",), {"temperature": (12, 2, 6, 0.2), "humidity": (65, 8, 15, 1)}),
)
SITES = ("aarhus", "bilbao", "cork", "dresden", "espoo", "ghent", "izmir", "krakow", "leeds", "turin")


@dataclass(frozen=True, slots=True)
class FleetSettings:
    """Properties of a fleet. Shares are of 1; `rate` is in records a second, 0 = what the types' own intervals give.

    A reading is at most `max_delay_ms` behind its device's clock, and that clock at most `skew_ms` off: a service whose
    limits are wider than these admits every ordinary reading. Of all devices `dropout_share` fall silent now and then,
    for `dropout_ms` in every `dropout_every_ms`; the others fill the rate. `evolved` is the share of devices that write
    schema 2 (Avro only).
    """

    devices: int = 10_000
    rate: float = 0.0
    max_delay_ms: int = 2_000
    skew_ms: int = 400
    dropout_share: float = 0.1
    dropout_ms: int = 180_000
    dropout_every_ms: int = 600_000
    evolved: float = 0.0
    shares: Mapping[Kind, float] = field(default_factory=lambda: dict(SHARES))

    def __post_init__(self) -> None:
        """Refuse, with a ValueError, what no fleet can be."""
        if self.devices < 1 or self.rate < 0:
            raise ValueError(f"a fleet needs a device and a rate of at least 0, not {self.devices} and {self.rate}")
        if sum(self.shares.values()) >= 1 or min(self.shares.values(), default=0.0) < 0:
            what = f"the shares of outsiders must be at least 0 and less than 1 together, not {dict(self.shares)}"
            raise ValueError(what)
        if not 0 <= self.dropout_ms < self.dropout_every_ms:
            what = f"a drop-out of {self.dropout_ms} ms must be shorter than its period of {self.dropout_every_ms} ms"
            raise ValueError(what)


@dataclass(frozen=True, slots=True)
class Readings:
    """n readings in the order they are due. `values` is n x len(MEASURES), NaN where a device lacks the measure."""

    device: npt.NDArray[np.intp]
    due_ms: Floats
    delay_ms: Ints
    kind: npt.NDArray[np.int8]
    values: Floats
    noise: Hashes

    def __len__(self) -> int:
        return len(self.device)

    def between(self, start: int, end: int) -> "Readings":
        return self.at(slice(start, end))

    def at(self, chosen: slice | npt.NDArray[np.intp]) -> "Readings":
        return Readings(
            self.device[chosen],
            self.due_ms[chosen],
            self.delay_ms[chosen],
            self.kind[chosen],
            self.values[chosen],
            self.noise[chosen],
        )


class Fleet:
    """The devices of one seed. Arrays are by device; `has` is device x measure; `rate` is in records a second."""

    def __init__(self, seed: int, settings: FleetSettings | None = None) -> None:
        self.seed = seed
        self.settings = settings or FleetSettings()
        n = self.settings.devices
        rng = np.random.default_rng(np.random.SeedSequence(seed))
        shares = np.array([each.share for each in TYPES])
        self.type = rng.choice(len(TYPES), n, p=shares / shares.sum())
        self.site = rng.integers(len(SITES), size=n)
        self.model = rng.integers([len(TYPES[code].models) for code in self.type])
        self.age_days = rng.integers(30, 2_000, size=n)
        self.skew_ms = np.rint(self.settings.skew_ms * rng.uniform(-1, 1, n) ** 3).astype(np.int64)
        self.evolved = rng.random(n) < self.settings.evolved
        self.names = [f"{TYPES[code].name}-{index:06d}" for index, code in enumerate(self.type)]
        self._schedule(rng)
        self._character(rng)
        thresholds = np.cumsum([self.settings.shares.get(kind, 0.0) for kind in Kind if kind is not Kind.ORDINARY])
        self._thresholds = thresholds
        self._salt = np.uint64(seed * int(_ODD) % 2**64)

    def _schedule(self, rng: np.random.Generator) -> None:
        settings, n = self.settings, self.settings.devices
        interval = np.array([each.interval_ms for each in TYPES], dtype=np.float64)[self.type]
        self._drops = rng.random(n) < settings.dropout_share
        on = 1 - self._drops * (settings.dropout_ms / settings.dropout_every_ms)
        if settings.rate:
            # Duplicates are sent twice.
            once_rate = settings.rate / (1 + settings.shares.get(Kind.DUPLICATE, 0.0))
            interval *= float((on * 1000 / interval).sum()) / once_rate
        self.interval_ms = interval
        self.rate = float((on * 1000 / interval).sum()) * (1 + settings.shares.get(Kind.DUPLICATE, 0.0))
        self._phase_ms = rng.uniform(0, 1, n) * interval
        self._drop_phase_ms = rng.uniform(0, settings.dropout_every_ms, n)

    def _character(self, rng: np.random.Generator) -> None:
        n = self.settings.devices
        self.has = np.zeros((n, len(MEASURES)), dtype=np.bool_)
        self._base = np.full((n, len(MEASURES)), np.nan)
        self._swing = np.zeros_like(self._base)
        self._noise = np.zeros_like(self._base)
        self._peak_ms = rng.normal(15, 1, n) * HOUR_MS
        for code, each in enumerate(TYPES):
            mine = np.flatnonzero(self.type == code)
            for measure, (base, spread, swing, noise) in each.measures.items():
                at = MEASURES.index(measure)
                self._base[mine, at] = rng.normal(base, spread, len(mine))
                self._swing[mine, at] = swing * rng.uniform(0.7, 1.3, len(mine))
                self._noise[mine, at] = noise
                self.has[mine, at] = True

    def readings(self, from_ms: int, to_ms: int, start_ms: int) -> Readings:
        """All readings due in model time [from_ms, to_ms), in order; `start_ms` is model time 0 since the epoch, UTC.

        Neighbouring pieces of time make up exactly the readings of the whole.
        """
        first = np.maximum(np.ceil((from_ms - self._phase_ms) / self.interval_ms), 0).astype(np.int64)
        last = np.maximum(np.ceil((to_ms - self._phase_ms) / self.interval_ms), 0).astype(np.int64)
        counts = last - first
        device = np.repeat(np.arange(len(counts)), counts)
        nth = np.arange(len(device)) - np.repeat(np.cumsum(counts) - counts, counts) + first[device]
        due_ms = self._phase_ms[device] + nth * self.interval_ms[device]
        settings = self.settings
        if settings.dropout_share:
            into = (due_ms - self._drop_phase_ms[device]) % settings.dropout_every_ms
            sent = ~(self._drops[device] & (into < settings.dropout_ms))
            device, nth, due_ms = device[sent], nth[sent], due_ms[sent]
        order = np.argsort(due_ms, kind="stable")
        device, nth, due_ms = device[order], nth[order], due_ms[order]
        noise = _mix(_mix(nth.astype(np.uint64) + self._salt) ^ (device.astype(np.uint64) * _ODD))
        return Readings(
            device=device,
            due_ms=due_ms,
            delay_ms=(_uniform(_mix(noise ^ np.uint64(1))) ** 3 * (settings.max_delay_ms + 1)).astype(np.int64),
            # Beyond the last threshold, len(Kind) - 1 of them, is ORDINARY: 0.
            kind=((np.searchsorted(self._thresholds, _uniform(noise), side="right") + 1) % len(Kind)).astype(np.int8),
            values=self._measure(device, due_ms + start_ms, noise),
            noise=noise,
        )

    def _measure(self, device: npt.NDArray[np.intp], at_ms: Floats, noise: Hashes) -> Floats:
        angle = (at_ms - self._peak_ms[device]) % DAY_MS * (2 * np.pi / DAY_MS)
        values = np.empty((len(device), len(MEASURES)))
        for column in range(len(MEASURES)):
            base, swing = self._base[device, column], self._swing[device, column]
            scatter = self._noise[device, column] * _normal(_mix(noise + np.uint64(column + 2)))
            values[:, column] = np.round(np.clip(base + swing * np.cos(angle) + scatter, *RANGES[MEASURES[column]]), 2)
        return values


def kinds_of(readings: Readings) -> Ints:
    """How many readings of each kind, by Kind; a duplicate counts once though it is sent twice."""
    return np.bincount(readings.kind, minlength=len(Kind))


def with_outsiders(share: float, *kinds: Kind) -> dict[Kind, float]:
    """`share` of the readings, evenly over `kinds`; when none is named those of SHARES, and half as many duplicates."""
    if kinds:
        return dict.fromkeys(kinds, share / len(kinds))
    return {kind: each * share / 0.01 for kind, each in SHARES.items()}


def reference_rows(fleet: Fleet) -> list[tuple[str, str, str, str, str]]:
    """The reference table's rows, (device_id, type, site, model, installed), in the order of the devices."""
    known = date(2026, 1, 1)
    return [
        (name, TYPES[code].name, SITES[site], TYPES[code].models[model], (known - timedelta(days=int(age))).isoformat())
        for name, code, site, model, age in zip(
            fleet.names, fleet.type, fleet.site, fleet.model, fleet.age_days, strict=True
        )
    ]


def write_reference_sqlite(path: Path | str, fleet: Fleet) -> None:
    """Write the reference table as an SQLite file; `path` is replaced in one step, a reader sees the old or the new."""
    fresh = Path(f"{path}.new")
    fresh.unlink(missing_ok=True)
    with contextlib.closing(sqlite3.connect(fresh)) as database, database:
        database.execute(REFERENCE_TABLE)
        database.executemany("insert into devices values (?, ?, ?, ?, ?)", reference_rows(fleet))
    fresh.replace(path)


_ODD = np.uint64(0x9E3779B97F4A7C15)


def _mix(x: Hashes) -> Hashes:
    """splitmix64's finalizer (Steele, Lea, Flood 2014): neighbouring counters become independent bits."""
    x = (x ^ (x >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    x = (x ^ (x >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return x ^ (x >> np.uint64(31))


def _uniform(x: Hashes) -> Floats:
    """[0, 1) from the upper 53 bits."""
    return (x >> np.uint64(11)).astype(np.float64) * 2.0**-53


def _normal(x: Hashes) -> Floats:
    """About N(0, 1), within +-3.5: the sum of four 16-bit uniforms, variance 1/3."""
    sums = x.view(np.uint16).reshape(-1, 4).sum(axis=1).astype(np.float64)
    normal: Floats = (sums * 2.0**-16 - 2.0) * 3.0**0.5
    return normal
