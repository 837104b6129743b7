"""Paths of fields in a record: names with dots between them, such as `env.temperature`.

A name with a dot, a blank or another sign is between backticks: `` `tank.level` `` is one field, `tank.level` one of an object.
Settings keep a path in one spelling, with backticks where they are needed, so that equal paths are equal texts.
"""

import re
from collections.abc import Iterable
from functools import lru_cache

_NAME = re.compile(r"`([^`]+)`|([^`.]+)")
_PATH = re.compile(rf"(?:{_NAME.pattern})(?:\.(?:{_NAME.pattern}))*")
AROUND, KEY = "^", "^key"
"""Names in readings that are cut out of a record (service/admission/nested.py): the object around one, and its key there."""
_PLAIN_NAME = re.compile(r"\w+|\^(key)?|\*")
_PLAIN = r"(?:`[^`]+`|[^\s`.+*/%=<>!(),'\"-]+(?:-[^\W\d]\w*)*)"
_PLAIN_PATH = re.compile(rf"{_PLAIN}(?:\.{_PLAIN})*")
_COMPUTED = re.compile(r"[()*=<>'\"]|\s[-+/%]\s")


@lru_cache(maxsize=4096)
def parts(path: str) -> tuple[str, ...]:
    """Return the names of a path, the outermost first. Raises ValueError."""
    if not _PATH.fullmatch(path):
        raise ValueError(f"{path!r} is no path of a field: names with dots between them, a name with a dot is in `...`")
    return tuple(quoted or plain for quoted, plain in _NAME.findall(path))


def spelled(names: Iterable[str]) -> str:
    """Return the path of these names; `parts` is the inverse. No name has a backtick."""
    return ".".join(name if _PLAIN_NAME.fullmatch(name) else f"`{name}`" for name in names)


def sql(names: Iterable[str], record: str) -> str:
    return ".".join([record, *(f"`{name}`" for name in names)])


def without_case(name: str) -> str:
    """Return a name that differs from that of every other name also where case is ignored, and is none of a producer's.

    `Temp` becomes `tidemark_field__temp`, and `_t` `tidemark_field___t`.
    """
    spelled_out = (f"_{each.lower()}" if each == "_" or each.lower() != each else each for each in name)
    return f"tidemark_field_{''.join(spelled_out)}"


def normal(path: str) -> str:
    """Return a path of the settings in its one spelling. Raises ValueError, also for a `$word`."""
    if path.startswith("$"):
        msg = (
            f"{path!r} is no field of the record, and an expression reads only such fields. "
            f"A field with this name is in backticks: `{path}`"
        )
        raise ValueError(msg)
    return spelled(parts(path))


def of_field(text: str) -> str:
    """Return the normal path of a setting that is never an expression. Raises ValueError, also for what looks like one."""
    if _COMPUTED.search(re.sub(r"`[^`]+`", "", text)):
        msg = f"{text!r} is no path of a field, and only a measure may be an expression. A field with this name is in `...`"
        raise ValueError(msg)
    return normal(text)


def is_plain(text: str) -> bool:
    """Whether a text without further keys is a path for certain: else it is an expression, or nothing."""
    return _PLAIN_PATH.fullmatch(text) is not None
