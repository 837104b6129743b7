"""SenML in CBOR (RFC 8428, section 6): the measurements of senml.py, with numbers in the place of names."""

import base64
from decimal import Decimal
from typing import Any

import cbor2

from service.admission.arrays import MAX_READINGS, UNDECODABLE, UnreadableArrayError
from service.admission.formats.senml import Senml

_LABELS = {
    -1: "bver",
    -2: "bn",
    -3: "bt",
    -4: "bu",
    -5: "bv",
    -6: "bs",
    0: "n",
    1: "u",
    2: "v",
    3: "vs",
    4: "vb",
    5: "s",
    6: "t",
    7: "ut",
    8: "vd",
}
_DEEPEST = 8
"""Levels of a record. A measurement has two, and what it may be extended by a few."""


class SenmlCbor(Senml):
    """As Senml. Data is text in base64url, as in JSON."""

    def pack(self, value: bytes) -> Any:
        stream = memoryview(value)
        try:
            pack = cbor2.loads(stream, max_depth=_DEEPEST, allow_duplicate_keys=False, strict_hashable_types=False)
            if isinstance(pack, list):
                if len(pack) > MAX_READINGS:
                    return pack  # refused before it is looked at
                return [{_name(key): _plain(each) for key, each in one.items()} for one in pack]
        except (
            Exception
        ) as error:  # what the bytes make the decoder raise: its own errors, and those of numbers and texts
            raise UnreadableArrayError(UNDECODABLE, f"is not CBOR: {' '.join(str(error).split())[:200]}") from error
        raise UnreadableArrayError(UNDECODABLE, "is no list of measurements")


def _name(key: Any) -> str:
    return _LABELS.get(key, str(key)) if isinstance(key, int) else str(key)


def _plain(value: Any) -> Any:
    if isinstance(value, bytes):
        return base64.urlsafe_b64encode(value).rstrip(b"=").decode()
    return float(value) if isinstance(value, Decimal) else value
