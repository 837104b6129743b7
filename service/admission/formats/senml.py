"""SenML (RFC 8428) in JSON: a record is a list of measurements, and what they share stands in the first of them.

    [{"bn": "urn:dev:ow:10e2:", "bt": 1.79e9, "bu": "Cel", "n": "air", "v": 21.5}, {"n": "soil", "t": 5, "v": 18}]
    {"name": "urn:dev:ow:10e2:soil", "device": "urn:dev:ow:10e2", "measure": "soil", "time": 1790000005, ...}

The second line is how the settings see the second measurement. `time` is in seconds: below 2^28 it is relative to the time of the
record in Kafka. `device` is the base name without the sign at its end, or the name where there is no base name.
"""

import json
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, NoReturn

from service.admission.arrays import MAX_READINGS, OVERSIZED, UNDECODABLE, UnreadableArrayError
from service.admission.formats.plain_json import Several
from service.settings import Input

_RELATIVE = 1 << 28
_VERSION = 10
_SIGNS = ":/._-"
_KINDS: Mapping[str, type | tuple[type, ...]] = {
    **dict.fromkeys(("bn", "bu", "n", "u", "vs", "vd"), str),
    **dict.fromkeys(("bt", "bv", "bs", "bver", "v", "s", "t", "ut"), (int, float)),
    "vb": bool,
}


class Senml(Several):
    """Each measurement is a reading. One that SenML does not allow makes its record `undecodable`: the others depend on it."""

    def readings(self, packed: bytes, _form: Input, broker_ms: int | None) -> Iterator[bytes]:
        return resolved(self.pack(packed), broker_ms)

    def pack(self, value: bytes) -> Iterable[Any]:
        """Return the measurements of a record. Raises UnreadableArrayError."""
        try:
            pack = json.loads(value, parse_constant=_refuse)
        except (ValueError, RecursionError) as error:
            raise UnreadableArrayError(UNDECODABLE, f"is not JSON: {error}") from error
        if not isinstance(pack, list):
            raise UnreadableArrayError(UNDECODABLE, "is no list of measurements")
        return pack

    def looks_alike(self, value: bytes) -> bool:
        try:
            pack = [*self.pack(value)]
            return len([*resolved(pack, 0)]) > 0 and bool({"bn", "n"} & {*pack[0]})
        except UnreadableArrayError:
            return False


def resolved(pack: Iterable[Any], broker_ms: int | None) -> Iterator[bytes]:
    """Yield the measurements of a pack as readings, each with what it has from those before it. Raises UnreadableArrayError.

    A measurement of base fields alone is no reading. One without a value that is read is a reading without a value.
    """
    base: dict[str, Any] = {}
    for number, each in enumerate(pack):
        if number >= MAX_READINGS:
            raise UnreadableArrayError(OVERSIZED, f"more than {MAX_READINGS} measurements in one record")
        if not isinstance(each, dict):
            raise UnreadableArrayError(UNDECODABLE, f"measurement {number} is no object")
        _check(number, each)
        base |= {name: value for name, value in each.items() if name.startswith("b")}
        if (base.get("bver", _VERSION)) > _VERSION:
            raise UnreadableArrayError(
                UNDECODABLE, f"measurement {number} has the version {base['bver']}, read are up to 10"
            )
        if "bv" in each or any(not name.startswith("b") for name in each):
            yield _reading(each, base, broker_ms)


def _check(number: int, each: Mapping[str, Any]) -> None:
    for name, value in each.items():
        kind = _KINDS.get(name)
        is_wrong = kind is not None and (not isinstance(value, kind) or (isinstance(value, bool) and kind is not bool))
        if is_wrong or str(name).endswith("_"):
            what = "must be understood, and is not known" if kind is None else f"is {_shown(value)}"
            raise UnreadableArrayError(UNDECODABLE, f"measurement {number}: {name} {what}")


def _shown(value: Any) -> str:
    """Return the begin of a value for people; its type where JSON does not have it, as some of CBOR."""
    try:
        return json.dumps(value)[:40]
    except (TypeError, ValueError):
        return type(value).__name__


def _reading(each: Mapping[str, Any], base: Mapping[str, Any], broker_ms: int | None) -> bytes:
    try:
        return _encoded(each, base, broker_ms)
    except (TypeError, ValueError, OverflowError) as error:  # numbers and values beyond those of JSON
        raise UnreadableArrayError(UNDECODABLE, f"a measurement cannot be read: {error}") from error


def _encoded(each: Mapping[str, Any], base: Mapping[str, Any], broker_ms: int | None) -> bytes:
    bn, n = base.get("bn", ""), each.get("n", "")
    made: dict[str, Any] = {"name": bn + n, "device": bn.rstrip(_SIGNS) if bn else n, "measure": n if bn else ""}
    time = base.get("bt", 0) + each.get("t", 0)
    if time < _RELATIVE:
        time = None if broker_ms is None else broker_ms / 1000 + time
    made["time"] = time
    if unit := each.get("u", base.get("bu")):
        made["unit"] = unit
    others = {"vs", "vb", "vd"} & each.keys()
    if "v" in each or ("bv" in base and not others and "s" not in each):
        made["value"] = base.get("bv", 0) + each.get("v", 0)
    made |= {{"vs": "text", "vb": "truth", "vd": "data"}[name]: each[name] for name in sorted(others)}
    if "s" in each or "bs" in base:
        made["sum"] = base.get("bs", 0) + each.get("s", 0)
    return json.dumps(made, allow_nan=False).encode()


def _refuse(name: str) -> NoReturn:
    raise ValueError(f"{name} is no number of JSON")
