"""SenML in CBOR (RFC 8428, section 6): the measurements of senml.py, with numbers in the place of names."""

import base64
import io
from collections.abc import Iterator
from decimal import Decimal
from typing import Any

import cbor2

from service.admission.arrays import UNDECODABLE, UnreadableArrayError
from service.admission.formats.senml import Senml

_LABELS = dict(enumerate("bs bv bu bt bn bver n u v vs vb s t ut vd".split(), -6))  # noqa: SIM905
"""By the numbers of RFC 8428, table 6: those of base fields are negative."""
_DEEPEST = 8
"""Levels of a measurement. It has one, and what it may be extended by a few."""
_LARGEST = 1 << 20
"""The most bytes of a measurement."""
_LIST, _BREAK, _SELF_DESCRIBED = 4, b"\xff", b"\xd9\xd9\xf7"


class SenmlCbor(Senml):
    """As Senml. Data is text in base64url, as in JSON."""

    def pack(self, value: bytes) -> Iterator[Any]:
        """Yield the measurements one after the other: an empty list is a byte, and 80 bytes once it is decoded."""
        stream = _Bounded(value.removeprefix(_SELF_DESCRIBED))
        head, size = stream.read(1), 0
        if not head or head[0] >> 5 != _LIST:
            raise UnreadableArrayError(UNDECODABLE, "is no list of measurements")
        try:
            size = _size(head[0] & 31, stream)
            decoder = cbor2.CBORDecoder(
                stream, max_depth=_DEEPEST, allow_duplicate_keys=False, strict_hashable_types=False
            )
            while size and not (size < 0 and stream.ends_list()):
                stream.end = stream.tell() + _LARGEST
                yield {_name(key): _plain(each) for key, each in decoder.decode().items()}
                size -= 1
        except (
            Exception
        ) as error:  # what the bytes make the decoder raise: its own errors, and those of numbers and texts
            raise UnreadableArrayError(UNDECODABLE, f"is not CBOR: {' '.join(str(error).split())[:200]}") from error


class _Bounded(io.BytesIO):
    """Gives no bytes beyond `end`, but for those that the decoder reads ahead."""

    end = _LARGEST

    def read(self, size: int | None = -1) -> bytes:
        if self.tell() > self.end:
            raise ValueError(f"a measurement has more than {_LARGEST} bytes")
        return super().read(size)

    def ends_list(self) -> bool:
        """Whether the next byte ends a list without a size; it is read then."""
        at = self.tell()
        if super().read(1) == _BREAK:
            return True
        self.seek(at)
        return False


def _size(given: int, stream: io.BytesIO) -> int:
    """Return the number of a list's elements, -1 for a list without a size."""
    if given < 24:
        return given
    return -1 if given == 31 else int.from_bytes(stream.read(1 << (given - 24)))


def _name(key: Any) -> str:
    return _LABELS.get(key, str(key)) if isinstance(key, int) else str(key)


def _plain(value: Any) -> Any:
    if isinstance(value, bytes):
        return base64.urlsafe_b64encode(value).rstrip(b"=").decode()
    return float(value) if isinstance(value, Decimal) else value
