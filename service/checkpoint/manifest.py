"""The checkpoint's manifest: what its state was made with, so that a start that does not fit is refused before it writes.

    {"format": 1, "application": "0.1.0", "spark": "4.1.1", "state_layout": 2, "query_shape": 2,
     "shuffle_partitions": 8, "settings": {"kafka.topics": ["readings"], "sessions.buckets": 8},
     "topic_ids": {"readings": "x8XW..."}, "by_hand": false}

Compared at every start: the layout of the state's bytes, the shape of the query, the settings that the state depends on,
the ids of the topics (a topic that was deleted and made again has its old name and new offsets). The ids of topics that were
read before stay, because a topic may come back. The list of topics is for people: service/checkpoint/topics.py changes it.
Views, measures, ranges, delays, the reference and the session rules are not in it: they may change on a running checkpoint
(docs/data-engineer.md).
The number of shuffle partitions is not compared but taken over: the state is divided by it, whatever cores stored are now.
So is the number of buckets where the settings have none.
The two versions are for people. Spark keeps its own settings (state store, formats) in its offset log.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from importlib.metadata import version
from typing import Any, Final, Literal, Self

from pydantic import BaseModel, ConfigDict

from service.checkpoint.document import Document
from service.errors import CheckpointError
from service.settings import Settings
from service.spark.files import Folder
from service.version import version as tidemark_version

NAME = "manifest.json"
FORMAT: Final = 1
SWITCHING: Final = 0
"""Instead of FORMAT while a checkpoint gets another number of buckets or partitions: see service/checkpoint/shape.py."""
QUERY_SHAPE = 2
"""To be raised with every change of the stateful operators, their order, or the columns of their keys and values.

tests/stream/test_checkpoint.py shows what they are, and fails when they change and this does not.
"""

RESHAPE = "`tidemark checkpoint reshape`"
REBUILD = "start with a new checkpoint and read the topic again: docs/operator/procedures.md#rebuild-from-kafka"


class Manifest(BaseModel):
    """The versions, settings and topics of a checkpoint."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    format: Literal[0, 1, 2] = FORMAT
    """0.4.0 and 0.5.0 write 2 where a view has a version, or a past that is not complete."""
    application: str
    spark: str
    state_layout: int
    query_shape: int
    shuffle_partitions: int
    settings: Mapping[str, int | Sequence[str]]
    topic_ids: Mapping[str, str]
    """Kafka's ids by topic; "" where the broker does not tell."""
    by_hand: bool = False
    """Made by `tidemark checkpoint init`: the start does not ask what an earlier checkpoint has read."""

    @classmethod
    def of(cls, settings: Settings, topic_ids: Mapping[str, str], shuffle_partitions: int) -> Self:
        """The manifest for these settings and this version."""
        return cls(
            application=tidemark_version(),
            spark=version("pyspark"),
            state_layout=_layout(),
            query_shape=QUERY_SHAPE,
            shuffle_partitions=shuffle_partitions,
            settings={"kafka.topics": sorted(settings.kafka.topics), "sessions.buckets": settings.buckets},
            topic_ids=dict(sorted(topic_ids.items())),
        )

    def for_this_version(self) -> Self:
        """Return the manifest with the layout and the shape of this version's query."""
        return self.model_copy(update={"state_layout": _layout(), "query_shape": QUERY_SHAPE})

    def encode(self) -> bytes:
        """Return the text of the file."""
        return DOCUMENT.encode(self)


def _layout() -> int:
    from state import codec  # noqa: PLC0415 - Arrow and NumPy take 0.2 s, and `tidemark checkpoint show` needs neither

    return codec.VERSION


_DAMAGED = "Restore the file, or see docs/operator/procedures.md#a-damaged-checkpoint"
DOCUMENT = Document[Manifest](NAME, Manifest, remedy=_DAMAGED, indent=2)


@dataclass(frozen=True, slots=True)
class Difference:
    """One difference between a start and its checkpoint, and its remedy."""

    what: str
    remedy: str


def read(folder: Folder) -> Manifest | None:
    """The manifest of a checkpoint, None when it has none. Raises CheckpointError when it cannot be used."""
    stored = DOCUMENT.read(folder)
    if stored is not None and stored.format == SWITCHING:
        what = f"{folder}/{NAME}: the checkpoint is getting another number of buckets, and that was interrupted"
        raise CheckpointError(what, remedy=f"Start the service or {RESHAPE}: each of them finishes it")
    return stored


def shown(folder: Folder) -> Manifest:
    """Return the manifest of a checkpoint. Raises CheckpointError without one."""
    current = read(folder)
    if current is None:
        what = f"{folder} has no {NAME}"
        remedy = "It is new, or not a checkpoint of this service's; `tidemark checkpoint init` writes one"
        raise CheckpointError(what, remedy=remedy)
    return current


def too_old(what: str) -> CheckpointError:
    """Return the error for a checkpoint on which no version from 0.4.0 on was started, as `what` shows."""
    return CheckpointError(what, remedy=f"Start 0.4.0 or 0.5.0 on it first, or {REBUILD}")


def buckets(settings: Settings, stored: Manifest | None, cores: int) -> int:
    """Return the number of buckets: of the settings, else of the checkpoint, else one a core."""
    kept = stored.settings.get("sessions.buckets") if stored is not None else None
    return settings.sessions.buckets or (kept if isinstance(kept, int) else cores)


def differences(stored: Manifest, expected: Manifest) -> list[Difference]:
    """Return why a start with the manifest `expected` cannot continue the checkpoint of `stored`; [] when it can."""
    result = []
    for name, mine, its in (
        ("the state's layout", expected.state_layout, stored.state_layout),
        ("the query's shape", expected.query_shape, stored.query_shape),
    ):
        if mine != its:
            way = f"Start version {stored.application}, which made it" if its > mine else "Nothing converts it"
            result.append(Difference(f"{name} is {its}, this version's is {mine}", f"{way}, or {REBUILD}"))
    for key, its_value in stored.settings.items():
        if key == "kafka.topics":
            continue
        mine_value = expected.settings.get(key)
        if mine_value != its_value:
            what = f"{key} is {_shown(its_value)}, the settings say {_shown(mine_value)}"
            way = f"Set it back, or leave it out; or change the checkpoint with {RESHAPE}, or {REBUILD}"
            result.append(Difference(what, way))
    for topic, its_id in stored.topic_ids.items():
        my_id = expected.topic_ids.get(topic, "")
        if its_id and my_id and its_id != my_id:
            what = f"the topic {topic} has the id {its_id}, the one at kafka.bootstrap has {my_id}"
            way = "The topic was deleted and created again, or is of another cluster: its offsets are of other records"
            result.append(Difference(what, f"{way}. Name the right cluster, or {REBUILD}"))
    return result


def require(place: str, stored: Manifest, expected: Manifest) -> None:
    """Raise one CheckpointError that names all differences."""
    problems = differences(stored, expected)
    if problems:
        what = (
            f"{place} was made by version {stored.application} and does not fit: {'; '.join(d.what for d in problems)}"
        )
        raise CheckpointError(what, remedy=". ".join(dict.fromkeys(d.remedy for d in problems)))


def _shown(value: Any) -> str:
    return ", ".join(value) if isinstance(value, Sequence) and not isinstance(value, str) else str(value)
