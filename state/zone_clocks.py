"""The clocks of all time zones of tzdata, and a text that tells in which months two versions of tzdata differ.

    rules(clock_ms, times)              when clocks show these times, in each month and zone
    other_months(clock_ms, times, rules)

Zones are read from their files (RFC 8536): transitions, and behind the last one a rule for each year. Few rules are different, so
all zones take 0.25 s for days, where asking each zone for each day takes 2 s.
"""

import io
import struct
import zlib
from base64 import b64decode, b64encode
from collections.abc import Collection, Mapping, Sequence
from datetime import datetime, timedelta
from hashlib import blake2b
from zoneinfo import ZoneInfo

import numpy as np

from state import calendar
from state.columns import Ints

_HEADER = struct.Struct(">4sc15x6l")
_TYPE = np.dtype([("offset", ">i4"), ("is_dst", "u1"), ("name", "u1")])


class Clocks:
    """What clocks of any zone show: these ascending times, in ms since 1970 and as datetimes without a zone."""

    def __init__(self, clock_ms: Ints, times: Sequence[datetime]) -> None:
        self.clock_ms, self._times = clock_ms, times
        self._of_rules: dict[bytes, Ints] = {}

    def offsets_ms(self, file: bytes) -> Ints:
        """Return the difference from UTC when the clock of a zone shows each time: the earlier one if it shows it twice, that of
        before if it skips it."""
        at_ms, offsets_ms, rule = _transitions(file)
        walls_ms = at_ms + np.maximum(offsets_ms[:-1], offsets_ms[1:])
        places = np.maximum.accumulate(np.searchsorted(self.clock_ms, walls_ms))
        found = np.repeat(offsets_ms, np.diff(places, prepend=0, append=len(self.clock_ms)))
        begin = int(places[-1]) if len(places) else 0
        if rule:
            found[begin:] = self._of_rule(rule)[begin:]
        return found

    def _of_rule(self, rule: bytes) -> Ints:
        if rule not in self._of_rules:
            zone, is_fixed = _zone_of(rule), b"," not in rule
            offsets = [zone.utcoffset(time) or timedelta() for time in (self._times[:1] if is_fixed else self._times)]
            ms = {each: each // timedelta(milliseconds=1) for each in set(offsets)}
            of_times = np.array([ms[each] for each in offsets], np.int64)
            self._of_rules[rule] = np.broadcast_to(of_times, len(self._times)) if is_fixed else of_times
        return self._of_rules[rule]


def rules(clock_ms: Ints, times: Sequence[datetime]) -> str:
    """Return a text that says when the clocks of all zones show these times, month by month, and of which zones that is."""
    files = calendar.zone_files()
    return f"{_digests(Clocks(clock_ms, times), files)} {_packed(files)}"


def other_months(clock_ms: Ints, times: Sequence[datetime], text: str) -> list[int]:
    """Return the months since January 1970 in which a zone of another tzdata, whose `rules` are given, has another clock here.

    Zones that only this tzdata has do not count.
    """
    theirs, names = text.split(" ")
    known = set(zlib.decompress(b64decode(names)).decode().split("\n"))
    files = {name: file for name, file in calendar.zone_files().items() if name in known}
    return calendar.other_months(_digests(Clocks(clock_ms, times), files), theirs)


def _digests(clocks: Clocks, files: Mapping[str, bytes]) -> str:
    weights: dict[bytes, int] = {}
    for name, file in files.items():  # by the names, as a zone may get another name's file and the clock that it had
        weights[file] = weights.get(file, 0) + int.from_bytes(blake2b(name.encode(), digest_size=8).digest())
    total = np.zeros(len(clocks.clock_ms), np.uint64)
    for file, weight in weights.items():
        total += clocks.offsets_ms(file).view(np.uint64) * np.uint64(weight & 0xFFFF_FFFF_FFFF_FFFF)
    return calendar.digests(clocks.clock_ms, total.view(np.int64))


def _packed(names: Collection[str]) -> str:
    return b64encode(zlib.compress("\n".join(names).encode(), 9)).decode()


def _transitions(file: bytes) -> tuple[Ints, Ints, bytes]:
    """Return when a zone's difference from UTC changes (ms), the differences from before the first time on, and the rule for the
    time behind the last one, "" for none."""
    _, version, *counts = _HEADER.unpack_from(file)
    if version < b"2":
        raise ValueError("a file of a time zone has no times of 64 bits")
    is_utc, is_standard, leaps, times, types, letters = counts
    second = _HEADER.size + 5 * times + 6 * types + letters + 8 * leaps + is_standard + is_utc
    *_, times, types, _ = _HEADER.unpack_from(file, second)
    begin = second + _HEADER.size
    at_s = np.maximum(
        np.frombuffer(file, ">i8", times, begin), -1 << 40
    )  # zic may write -2^59, which as ms is no int64
    numbers = np.frombuffer(file, "u1", times, begin + 8 * times)
    offsets_s = np.frombuffer(file, _TYPE, types, begin + 9 * times)["offset"].astype(np.int64)
    return at_s.astype(np.int64) * 1000, np.append(offsets_s[:1], offsets_s[numbers]) * 1000, file.split(b"\n")[-2]


def _zone_of(rule: bytes) -> ZoneInfo:
    """Return the zone that has always had this rule."""
    part = _HEADER.pack(b"TZif", b"2", 0, 0, 0, 0, 1, 4) + bytes(6) + b"UTC\0"
    return ZoneInfo.from_file(io.BytesIO(part + part + b"\n" + rule + b"\n"))
