"""Words of fields' names: `endDeviceIds.deviceId` has the words end, device, id, device, id."""

import re
import unicodedata
from collections.abc import Collection, Sequence

from service.admission.nested import EACH
from service.settings import RESERVED_MEASURES

_WORD = re.compile(r"[A-Z]+(?![a-z])|[A-Z]?[a-z]+|[0-9]+|[^\W\d_A-Za-z]+")


def words_set(text: str) -> frozenset[str]:
    """Return the words of a text with blanks between them."""
    return frozenset(text.split())


DEVICE_WORDS = words_set(
    "device dev sensor mote node meter thing vehicle asset machine equipment probe robot turbine pump inverter "
    "beacon tracker controller icao24 icao imei host hostname mmsi iccid truck bus thermostat plc tid instance"
)
"""Words for what sends readings."""
VAGUE_WORDS = words_set("core entity unit tag object endpoint")
"""Words that are a device's only beside a word for an id."""
PLACE_WORDS = words_set("station location site gateway room line vessel aircraft topic target subject src")
"""Words for what may send readings, and may be where the sender is."""
ID_WORDS = words_set("id uid uuid guid eui addr address serial mac imei icao24 name")
GENERIC = words_set("value val v reading state result avg mean current raw data")
"""Names that only their parent makes a name of."""
_HEADS = DEVICE_WORDS | VAGUE_WORDS | PLACE_WORDS
_LONGEST = 63


def words(part: str) -> list[str]:
    """Return the words of one name in lower case, singular; `moteid` is mote and id."""
    found: list[str] = []
    for word in (_singular(each.lower()) for each in _WORD.findall(part)):
        head = next((each for end in ID_WORDS if (each := word.removesuffix(end)) in _HEADS), None)
        found += [head, word.removeprefix(head)] if head and head != word else [word]
    if part.lower() in ID_WORDS:  # a name with digits in it
        found.append(part.lower())
    return found


def _singular(word: str) -> str:
    """Remove the s of a plural; other words keep it, or lose it in all their uses."""
    if word == "ids":
        return "id"
    return word[:-1] if word.endswith("s") and not word.endswith("ss") and len(word) > 3 else word


def is_readable(parts: Sequence[str]) -> bool:
    """Whether settings can name this path: backticks are around a name with a dot or another sign; `*` is every member."""
    return all(part not in {"", EACH} and "`" not in part and part.isprintable() and is_text(part) for part in parts)


def is_text(part: str) -> bool:
    """Whether a file can hold a text: JSON can escape half of a surrogate pair."""
    try:
        part.encode()
    except UnicodeEncodeError:
        return False
    return True


def measure_name(parts: Sequence[str], taken: Collection[str]) -> str:
    """Return a name for the measure at a path: that of the field, with its parents' where that is generic, reserved or taken."""
    many = 1
    while many < len(parts) and slug(parts[-many:]) in GENERIC | RESERVED_MEASURES | set(taken) | {""}:
        many += 1
    name = slug(parts[-many:]) or "measure"
    if name in RESERVED_MEASURES:
        name = f"{name}_value"
    number, unique = 2, name
    while unique in taken:
        unique, number = f"{name[: _LONGEST - 4]}_{number}", number + 1
    return unique


def slug(parts: Sequence[str]) -> str:
    """The parts as a name of the settings: lower-case letters, digits and _, a letter first; "" if nothing is left."""
    plain = unicodedata.normalize("NFKD", "_".join(parts)).encode("ascii", "ignore").decode()
    spaced = re.sub(r"(?<=[a-z0-9])(?=[A-Z])", "_", plain)
    name = re.sub(r"[^a-z0-9]+", "_", spaced.lower()).strip("_")[:_LONGEST].strip("_")
    return name if not name or name[0].isalpha() else f"m_{name}"[:_LONGEST].strip("_")
