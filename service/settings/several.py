"""Several settings files for one process: each is a pipeline, and no two share what only one may write."""

from collections.abc import Iterable, Iterator, Sequence
from itertools import combinations
from pathlib import Path

from service.errors import SettingsError
from service.settings.loading import load
from service.settings.place import folder, nested
from service.settings.section import NAME
from service.settings.settings import Settings
from service.settings.topics_pattern import matches


def name_of(settings: Settings, path: Path) -> str:
    """Return the name of a pipeline among several: `service.name`, by default the stem of its file."""
    return settings.service.name if "name" in settings.service.model_fields_set else path.stem


def load_named(path: Path) -> Settings:
    """Read one file of several, with the pipeline's name as `service.name`. Raises SettingsError."""
    settings = load(path)
    name = name_of(settings, path)
    if not NAME.match(name):
        msg = f"{path}: service.name is missing, and {name!r} is no name: lower-case letters, digits and _, a letter first"
        raise SettingsError(msg, remedy="Name the pipeline with service.name")
    service = settings.service.model_copy(update={"name": name})
    return settings.model_copy(update={"service": service})


def require_apart(pipelines: Sequence[tuple[Path, Settings]]) -> None:
    """Raise SettingsError with everything that two pipelines of a process may not share, and what they must share."""
    problems = [
        f"{one} and {other}: {problem}"
        for (one, a), (other, b) in combinations(pipelines, 2)
        for problem in _shared(a, b)
    ]
    if problems:
        msg = f"{len(problems)} problem{'s' if len(problems) > 1 else ''}:\n  " + "\n  ".join(problems)
        raise SettingsError(msg, remedy="Give each pipeline its own, or run one process for each file")


def _shared(a: Settings, b: Settings) -> Iterator[str]:
    if a.service.name == b.service.name:
        yield f"service.name: both are {a.service.name!r}, which names a pipeline in metrics, in /status and in commands"
    if a.kafka.group == b.kafka.group:
        yield f"kafka.group: both are {a.kafka.group!r}, so one would overwrite the offsets of the other"
    by_pattern = {topic for x, y in ((a, b), (b, a)) for topic in _matched(y, x.kafka.topics)}
    for topic in sorted({*_rejects(a, by_pattern)} & {*_rejects(b, by_pattern)}):
        yield f"kafka.rejects: both copy rejects to {topic!r}, where nobody could tell them apart"
    yield from nested("redis.prefix", a.redis.prefix, b.redis.prefix, ":")
    yield from nested("service.checkpoint", folder(a.service.checkpoint), folder(b.service.checkpoint), "/")
    for outlet, other in ((x, y) for x in a.outlets for y in b.outlets):
        names = f"outlets.{outlet.name} and outlets.{other.name}"
        yield from outlet.overlap(names, other, a.kafka, b.kafka)
    pattern = a.kafka.topics_pattern
    if pattern is not None and (pattern, a.kafka.rejects) == (b.kafka.topics_pattern, b.kafka.rejects):
        yield f"kafka.topics_pattern: both have {pattern!r}, and copy rejects to the same topics"
    for one, another in ((a, b), (b, a)):
        written = sorted({topic for each in one.outlets for topic in each.topics()})
        for topic in {*written} & {*_rejects(another)}:
            yield f"outlets: {one.service.name} writes finals to {topic!r}, a rejects topic of {another.service.name}"
        for topic in _matched(another, written):
            reader = another.service.name
            yield f"outlets: {one.service.name} writes finals to {topic!r}, which {reader} reads by its topics_pattern"
    if a.service.log != b.service.log:
        yield f"service.log: {a.service.log} and {b.service.log}, and a process has one log"
    if a.otel != b.otel:
        yield "otel: a process sends its traces to one collector, with one ratio; give both the same section"


def _rejects(settings: Settings, more: Iterable[str] = ()) -> Iterator[str]:
    """Yield the rejects topics of the settings' topics, and of `more` where the settings read these."""
    return map(settings.kafka.rejects_topic, {*settings.kafka.topics, *_matched(settings, more)})


def _matched(settings: Settings, topics: Iterable[str]) -> list[str]:
    """Return those of some topics that the settings read by a pattern."""
    pattern = settings.kafka.topics_pattern
    return [] if pattern is None else matches(pattern, topics)
