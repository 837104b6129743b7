"""The shape of a checkpoint's state: its buckets and shuffle partitions, and the switch of a checkpoint to another shape.

    reshape/switch.json      the shapes before and after, and which of them the checkpoint has or is being given
    reshape/state/P          partition P of a shape that has more than the checkpoint's
    reshape/keys.before      the folder `distinct` of the shape before; `keys.after` that of the shape after, until the switch

Spark names the files of the state by the attempt that wrote them, and `commits/N` says which attempt counts. So the states of
both shapes lie side by side, and a switch replaces texts: the ids in `commits/N`, the number of partitions in `offsets` and in
the operator's metadata, the manifest. It also moves the folders of partitions that only one of the shapes has. Until all is done,
the manifest has a format that every version refuses, and a switch that a crash has interrupted is finished at the next start.
tests/integration/test_reshape.py interrupts it at each step (Spark 4.1.1).
"""

from dataclasses import dataclass, replace
from typing import Any

from service import failpoint
from service.checkpoint import manifest
from service.checkpoint.document import Document
from service.checkpoint.manifest import Manifest
from service.errors import CheckpointError
from service.spark.files import RESTORE, Files, Folder, local
from service.spark.internals import commit_log, offset_log, state_files

FOLDER = "reshape"
KEYS = "distinct"
"""As `service.aggregation.seen_keys.FOLDER`."""

ASIDE = f"{FOLDER}/state"


@dataclass(frozen=True, slots=True)
class Shape:
    """`attempts` are the ids in the names of the state's files, by partition."""

    buckets: int
    attempts: tuple[str, ...]

    @property
    def partitions(self) -> int:
        return len(self.attempts)

    def __str__(self) -> str:
        return f"{self.buckets} buckets, {self.partitions} shuffle partitions"


@dataclass(frozen=True, slots=True)
class Switch:
    """A switch after batch `batch`.

    `is_back`: the checkpoint has or gets the shape `before` again. `is_done`: it has the shape.
    """

    batch: int
    before: Shape
    after: Shape
    is_back: bool = False
    is_done: bool = False

    @property
    def wanted(self) -> Shape:
        """The shape that the checkpoint has or gets."""
        return self.before if self.is_back else self.after


DOCUMENT = Document[Switch](f"{FOLDER}/switch.json", Switch, indent=1)


def of(folder: Folder, batch: int) -> Shape:
    """Return the shape of a checkpoint whose last committed batch is `batch`. Raises CheckpointError."""
    current = manifest.read(folder)
    try:
        number = current.settings["sessions.buckets"] if current is not None else None
        if not isinstance(number, int):
            raise TypeError(manifest.NAME)
        return Shape(number, tuple(commit_log.attempts(folder, batch).values()))
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise CheckpointError(f"{folder}: the shape of its state cannot be read: {error}", remedy=RESTORE) from error


def begin(files: Files, switch: Switch) -> None:
    """Write that a switch begins, and make it. The shapes must differ. Raises CheckpointError, or OSError."""
    DOCUMENT.write(files, replace(switch, is_done=False))
    _set_manifest(files, format=manifest.SWITCHING)
    failpoint.hit("reshape_begun")
    finish(files)


def finish(files: Files) -> None:
    """Finish a switch that was begun, if there is one. Raises CheckpointError, or OSError."""
    switch = DOCUMENT.read(files)
    if switch is None or switch.is_done:
        return
    stored = manifest.DOCUMENT.required(files)
    if stored.format == manifest.SWITCHING:
        _replace(files, switch)
    elif of_manifest(stored) != (switch.wanted.buckets, switch.wanted.partitions):
        # Nothing was replaced yet, and batches may have been committed since.
        files.remove(DOCUMENT.name)
        return
    DOCUMENT.write(files, replace(switch, is_done=True))


def of_manifest(stored: Manifest) -> tuple[Any, int]:
    """Return the numbers of buckets and partitions in a manifest."""
    return stored.settings["sessions.buckets"], stored.shuffle_partitions


def _replace(files: Files, switch: Switch) -> None:
    shape = switch.wanted
    commit_log.set_attempts(files, switch.batch, shape.attempts)
    failpoint.hit("reshape_half")
    for batch in (switch.batch, switch.batch + 1):
        offset_log.set_partitions(files, batch, shape.partitions)
    state_files.set_partitions(files, shape.partitions)
    _move_partitions(files, shape)
    _move_keys(files, is_back=switch.is_back)
    settings = {**manifest.DOCUMENT.required(files).settings, "sessions.buckets": shape.buckets}
    _set_manifest(files, format=manifest.FORMAT, settings=settings, shuffle_partitions=shape.partitions)


def place(partition: int, partitions: int) -> str:
    """Return the folder of a partition's state in a checkpoint that has so many: those above wait outside of `state`."""
    return f"{state_files.OPERATOR if partition < partitions else ASIDE}/{partition}"


def _move_partitions(files: Files, shape: Shape) -> None:
    """Leave the folders of the partitions in `state`, and no other: a reader takes each folder for a partition."""
    for folder in (state_files.OPERATOR, ASIDE):
        for name in files.folders(folder):
            if name.isdecimal() and (wanted := place(int(name), shape.partitions)) != f"{folder}/{name}":
                files.move_folder(f"{folder}/{name}", wanted)


def _move_keys(files: Files, *, is_back: bool) -> None:
    """Exchange the folder of keys and the one of the other shape. A folder is only where tasks can write it: on this machine."""
    root = local(files.root)
    if root is None:
        return
    staged, before, used = root / FOLDER / "keys.after", root / FOLDER / "keys.before", root / KEYS
    source, aside = (before, staged) if is_back else (staged, before)
    if not source.exists():
        return
    if used.exists() and not aside.exists():
        used.rename(aside)
    source.rename(used)


def _set_manifest(files: Files, **fields: Any) -> None:
    manifest.DOCUMENT.write(files, manifest.DOCUMENT.required(files).model_copy(update=fields))
