"""`tidemark views`: list the views, and change those of the settings file.

The settings file is the truth. A command changes the text of its [[views]] and nothing else, validates the result, replaces the
file, and sends SIGHUP to the service, which reads the file again. A service on another machine, or with a file of its own, gets
neither: the command says what to do.
"""

import os
import re
import signal
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any

from service import clock
from service import settings as configuration
from service.daemon import owner
from service.errors import SettingsError
from service.monitoring import pages, status
from service.printing import aligned
from service.publication.meta import calendar_of
from service.redis.keys import shards
from service.redis.link import reader
from service.settings import Settings
from service.units import format_duration, format_time
from state.rules import ENDLESS_MS

Document = Mapping[str, Any]
Say = Callable[[str], object]

_VIEW = re.compile(r"\s*\[\[\s*views\s*\]\]\s*(#.*)?$")
_HEADER = re.compile(r"\s*\[")
_BY_HAND = "Edit the file by hand, and send SIGHUP to the service"
PATIENCE_S = 60.0
"""How long a command waits for the service to take the views, or to refuse them."""
_POLL_S = 0.5


def add(path: Path, text: str) -> str:
    """Return the text of the settings file with the [[views]] of another text added. Raises SettingsError."""
    settings, more = _texts(path, text)
    names = [view["name"] for view in settings["views"]]
    for view in more:
        if view["name"] in names:
            msg = f"{path}: there is a view {view['name']!r}"
            raise SettingsError(msg, remedy="`tidemark views change` replaces it")
    block = text.strip("\n").rstrip()
    after = f"{configuration.read(path).rstrip()}\n\n{block}\n"
    return _checked(path, after, {**settings, "views": [*settings["views"], *more]})


def change(path: Path, text: str) -> str:
    """Return the text of the settings file with the views of another text in the place of those of the same names."""
    settings, more = _texts(path, text)
    lines = configuration.read(path).splitlines()
    views = list(settings["views"])
    for view in more:
        number = _number(path, views, view["name"])
        begin, end = _blocks(path, lines, views)[number]
        others = [each["name"] for each in more]
        own = _blocks(path, text.splitlines(), more)[others.index(view["name"])]
        lines[begin:end] = text.splitlines()[slice(*own)]
        views[number] = view
    return _checked(path, "\n".join(lines) + "\n", {**settings, "views": views})


def remove(path: Path, name: str) -> str:
    """Return the text of the settings file without a view. Raises SettingsError."""
    text, settings = configuration.read(path), _document(path)
    views = list(settings["views"])
    number = _number(path, views, name)
    if len(views) == 1:
        msg = f"{path}: {name!r} is the only view, and a service has at least one"
        raise SettingsError(msg, remedy="Add another one first")
    lines = text.splitlines()
    begin, end = _blocks(path, lines, views)[number]
    while end < len(lines) and not lines[end].strip():
        end += 1
    del lines[begin:end], views[number]
    return _checked(path, "\n".join(lines) + "\n", {**settings, "views": views})


def write(path: Path, text: str) -> None:
    """Replace the settings file, with the mode and the owner that it has. A link to it stays a link. Raises SettingsError."""
    place = path.resolve()
    new = place.with_name(f".{place.name}.{os.getpid()}.new")
    try:
        former = place.stat()
        new.write_text(text, encoding="utf-8")
        os.chown(new, former.st_uid, former.st_gid)
        new.chmod(former.st_mode & 0o777)
        os.replace(new, place)
    except OSError as error:
        with suppress(OSError):
            new.unlink(missing_ok=True)
        msg = f"{path} cannot be replaced ({error.strerror})"
        raise SettingsError(msg, remedy="Change it where it is kept, and send SIGHUP to the service") from error


def tell(settings: Settings, say: Say, name: str = "") -> int:
    """Send SIGHUP to the service and wait until it has the views of these settings. Returns the exit status.

    `name` is that of the pipeline, where the process may have several.
    """
    keys = shards(settings.redis)[0]
    with reader(settings.redis, keys, "the lease") as (client, budget):
        holder = (budget.attempt(partial(client.get, keys.lease)) or b"").decode()
    if not holder:
        say("no service runs: it has these views when it starts")
        return 0
    pid = owner.pid_of(holder.rpartition(":")[0])
    if pid is None:
        host, _, rest = holder.partition(":")
        number = rest.partition(":")[0]
        say(f"the service is process {number} at {host}: change its settings file, too, and send it SIGHUP there")
        return 1
    asked_ms = clock.now_ms()
    try:
        os.kill(pid, signal.SIGHUP)
    except OSError as error:
        say(
            f"process {pid} cannot be sent SIGHUP ({error.strerror}). The file has the views: send it as the service's user"
        )
        return 1
    return _wait(settings, asked_ms, pid, say, name)


def _wait(settings: Settings, asked_ms: int, pid: int, say: Say, name: str) -> int:
    until, state = clock.monotonic_s() + PATIENCE_S, "unknown"
    while clock.monotonic_s() < until:
        document = status.ask(settings.metrics, name)
        if document is None:
            say(
                f"process {pid} was sent SIGHUP; it answers no questions at {pages.address(settings.metrics)}: see its log"
            )
            return 0
        state = document["state"]
        answer = document.get("views") or {"list": [], "refused": None}  # a service has none until Spark runs
        refused = answer["refused"]
        if refused is not None and refused["at_ms"] >= asked_ms:
            raise SettingsError(f"the service refuses the file: {refused['text']}")
        if are_taken(settings, answer["list"]):
            for line in table(answer["list"]):
                say(line)
            return 0
        time.sleep(_POLL_S)
    say(
        f"process {pid} has not taken the views within {PATIENCE_S:.0f} s; its state is {state}. The file has them: the process "
        "takes them when it runs and its present batch is committed. `tidemark status` shows the batch and the last error, "
        "`tidemark views list` the views of the process"
    )
    return 1


def are_taken(settings: Settings, answered: Sequence[Document]) -> bool:
    """Whether a service that answers with these views has those of the settings."""
    newest = {each["name"]: each for each in answered}
    wanted = {view.name: settings.view_definition(view) for view in settings.views}
    return newest.keys() == wanted.keys() and all(newest[name].items() >= each.items() for name, each in wanted.items())


def listed(settings: Settings, name: str = "") -> Sequence[Document]:
    """Return the views of the running service, or of the settings if none answers. `name` as for `tell`."""
    answer = (status.ask(settings.metrics, name) or {}).get("views")
    if answer is not None:
        return list(answer["list"])
    return [
        {"name": view.name, "keys": None, **settings.view_definition(view), "next": False, "complete_from_ms": None}
        for view in settings.views
    ]


def table(views: Sequence[Document]) -> Iterator[str]:
    """Format views as lines."""
    rows = [("view", "in keys", "window", "by", "complete")]
    for view in views:
        from_ms = view["complete_from_ms"]
        complete = "yes" if from_ms is None else f"from {format_time(from_ms)}; its past is computed"
        if view["next"]:
            complete += "; the former version serves meanwhile"
        by = ", ".join(view["by"]) or "-"
        rows.append((view["name"], view["keys"] or "-", _length(view), by, complete))
    yield from aligned(rows)


def _length(view: Document) -> str:
    if (calendar := calendar_of(view)) is not None:
        return calendar.text
    return "none" if view["window_ms"] == ENDLESS_MS else format_duration(view["window_ms"])


def _texts(path: Path, text: str) -> tuple[dict[str, Any], list[dict[str, Any]]]:
    """Return the document of the settings file, and the views to add or change."""
    document = configuration.document(text, Path("FILE"))
    if document.keys() != {"views"} or not _are_named(document["views"]):
        msg = "FILE: must have [[views]] with a name, and nothing else"
        raise SettingsError(msg, remedy="Write them as in the settings file")
    return _document(path), document["views"]


def _document(path: Path) -> dict[str, Any]:
    """Return the settings file's document, also of settings that are not valid. Raises SettingsError."""
    document = {"views": [], **configuration.document(configuration.read(path), path)}
    if not _are_named(document["views"]):
        raise SettingsError(f"{path}: not each of its views is a table with a name", remedy=_BY_HAND)
    return document


def _are_named(views: object) -> bool:
    return isinstance(views, list) and all(isinstance(v, dict) and isinstance(v.get("name"), str) for v in views)


def _number(path: Path, views: Sequence[Document], name: str) -> int:
    names = [view["name"] for view in views]
    if name not in names:
        msg = f"{path}: there is no view {name!r}; there are {', '.join(names)}"
        raise SettingsError(msg, remedy="Correct the name; `tidemark views add` adds a view")
    return names.index(name)


def _blocks(path: Path, lines: Sequence[str], views: Sequence[Document]) -> list[tuple[int, int]]:
    """Return the lines of each [[views]], without empty lines and comments before what follows."""
    blocks = []
    for begin, line in enumerate(lines):
        if _VIEW.match(line):
            end = begin + 1
            while end < len(lines) and not _HEADER.match(lines[end]):
                end += 1
            while not lines[end - 1].strip() or lines[end - 1].lstrip().startswith("#"):
                end -= 1
            blocks.append((begin, end))
    if len(blocks) != len(views):
        raise SettingsError(f"{path}: its views are not all tables that begin with [[views]]", remedy=_BY_HAND)
    return blocks


def _checked(path: Path, text: str, expected: Document) -> str:
    """Return a text after it was found to have the expected content, and to be valid settings."""
    try:
        is_expected = configuration.document(text, path) == expected
    except SettingsError:
        is_expected = False
    if not is_expected:
        raise SettingsError(f"{path}: the place of the view in its text is not found", remedy=_BY_HAND)
    configuration.loads(text, path)
    return text
