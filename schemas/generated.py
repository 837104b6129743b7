"""The parts of schemas/redis.json, of its page and of the client that follow from the registry of statistics.

    python -m schemas.generated        # writes them again, after a change of state/statistics.py

`tests/unit/test_statistics.py` fails while a file differs.
"""

import re
from collections.abc import Iterable
from pathlib import Path

from state.statistics import ALWAYS, ORDERED, SESSION_STATISTICS, STATISTICS, Statistic

ROOT = Path(__file__).resolve().parents[1]
CONTRACT, PAGE = ROOT / "schemas" / "redis.json", ROOT / "schemas" / "redis.md"
CLIENT = ROOT / "clients" / "python" / "src" / "tidemark_client" / "values.py"


def texts() -> dict[Path, str]:
    """Return each file and the text that it must have."""
    contract = CONTRACT.read_text(encoding="utf-8")
    contract = _between(contract, '"window": {', r'"end": \{[^\n]*\n', _properties(), ' *"epoch"')
    contract = _between(contract, '"session": {', r'"patternProperties": \{\n', _session_properties(), r" *\}")
    page = _between(PAGE.read_text(encoding="utf-8"), "", r"<!-- statistics -->\n", _table(), "<!-- end -->")
    client = _between(
        CLIENT.read_text(encoding="utf-8"), "class Window", r"schemas.generated`\.\n", _fields(), "    final"
    )
    client = _between(client, "class Summary", r"    max: [^\n]*\n", _session_fields(), "\n")
    return {CONTRACT: contract, PAGE: page, CLIENT: client}


def _between(text: str, after: str, begin: str, lines: Iterable[str], end: str) -> str:
    """Replace what is between the first `begin` behind `after` and the next `end`."""
    head = text.index(after)
    match = re.compile(f"{begin}(.*?)^{end}", re.DOTALL | re.MULTILINE).search(text, head)
    if match is None:
        raise ValueError(f"there is no {begin!r} with {end!r} behind it")
    return text[: match.start(1)] + "".join(f"{line}\n" for line in lines) + text[match.end(1) :]


def _type(statistic: Statistic) -> str:
    if statistic.unit == "devices":
        return "positive"
    if statistic.unit in {"readings", "times"}:
        return "count"
    return "integer" if statistic.is_whole else "number"


def _properties() -> Iterable[str]:
    for name, statistic in STATISTICS.items():
        yield f'{" " * 10}"{name}": {{"$ref": "#/$defs/{_type(statistic)}"}},'


def _session_properties() -> Iterable[str]:
    """The number of readings of a measure may be 0."""
    whole = [name for name in ORDERED if STATISTICS[name].is_whole]
    others = "|".join(name for name in (*SESSION_STATISTICS, *ORDERED) if name not in {"count", *whole})
    yield f'{" " * 10}"^[a-z][a-z0-9_]*\\\\.({"|".join(("count", *whole))})$": {{"$ref": "#/$defs/count"}},'
    yield f'{" " * 10}"^[a-z][a-z0-9_]*\\\\.({others})$": {{"$ref": "#/$defs/number"}}'


def _fields() -> Iterable[str]:
    for name, statistic in STATISTICS.items():
        yield f"    {name}: {'int' if statistic.is_whole else 'float'}{'' if name in ALWAYS else ' | None'}"


def _session_fields() -> Iterable[str]:
    for name in ORDERED:
        yield f"    {name}: {'int' if STATISTICS[name].is_whole else 'float'} | None = None"


_UNITS = {
    "measure": "the measure's",
    "measure/s": "the measure's, per second",
    "measure*s": "the measure's, times seconds",
    "share": "0 to 1",
    "s": "seconds",
    "ms": "ms since the epoch",
}


def _table() -> Iterable[str]:
    yield "| statistic | meaning | unit | error | sessions |"
    yield "| --- | --- | --- | --- | --- |"
    for name, each in STATISTICS.items():
        unit = _UNITS.get(each.unit, each.unit)
        of_sessions = "yes" if name in SESSION_STATISTICS else "by `sessions.statistics`" if name in ORDERED else "no"
        yield f"| `{name}` | {each.meaning} | {unit} | {each.error} | {of_sessions} |"


if __name__ == "__main__":
    for path, text in texts().items():
        path.write_text(text, encoding="utf-8")
