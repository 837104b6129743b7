"""Print the output of commands as plain text: text of a device, a broker or a file cannot control the terminal."""

import json
import re
import shlex
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any


def printable(text: str) -> str:
    """The text with each control character, newline, terminal escape and invisible character as its Python escape."""
    if text.isprintable():
        return text
    return "".join(each if each.isprintable() else each.encode("unicode_escape").decode() for each in text)


def say(line: object) -> None:
    print(printable(str(line)))  # noqa: T201


def aligned(rows: Sequence[Sequence[str]], *, is_right: bool = False) -> Iterator[str]:
    """Yield rows as lines whose columns are as wide as their widest cell; with `is_right` all but the last end together."""
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    for *cells, last in rows:
        padded = [
            text.rjust(width) if is_right else text.ljust(width) for text, width in zip(cells, widths, strict=False)
        ]
        yield "  ".join([*padded, last]).rstrip()


def counted(count: int, noun: str) -> str:
    """The number with the noun, in the plural unless it is 1."""
    return f"{count:,} {noun}" if count == 1 else f"{count:,} {noun}s"


def command_line(words: str, config: Path) -> str:
    """Return a command as one types it: `tidemark WORDS`, with the file quoted for a shell."""
    return f"tidemark {words} --config {shlex.quote(str(config))}"


def settings_file(path: Path, pipeline: str = "") -> None:
    """Note the settings file of the command, or of one of several pipelines, for `complete`."""
    _files[pipeline] = path.absolute()


def complete(text: str, pipeline: str = "") -> str:
    """Return a message with its commands as one types them: each one in backticks gets --config and the noted file."""
    path = _files.get(pipeline, _files.get(""))
    return text if path is None else _COMMAND.sub(lambda found: _completed(found, path), text)


_files: dict[str, Path] = {}
_COMMAND = re.compile(r"`tidemark ([^`\n]+)`")
_WITHOUT_SETTINGS = {"init", "jars", "deploy", "demo", "run"}
_FILE = "--config FILE"


def _completed(found: "re.Match[str]", path: Path) -> str:
    words = found[1].removesuffix(_FILE).strip().replace(f" {_FILE} ", " ")
    if words.split()[0] in _WITHOUT_SETTINGS or "--config" in words or "--help" in words:
        return found[0]
    return f"`{command_line(words, path)}`"


def document(content: Any) -> str:
    """JSON of one line, in ASCII without control characters. Raises ValueError for NaN and infinities."""
    return json.dumps(content, allow_nan=False).replace("\x7f", "\\u007f")
