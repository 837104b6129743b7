"""The two folders of a rebuild (`tidemark rebuild`), and the exchange of their names.

    <checkpoint>            the checkpoint of the service
    <checkpoint>.rebuild    the new checkpoint, which is made beside it; after the switch the former one
    rebuild.json            in the new checkpoint, wherever it is: the step, and the result of the comparison

The switch is one call of the system, renameat2 with RENAME_EXCHANGE: each name refers to a complete checkpoint at any time, and a
crash leaves the names as they were before it or after it. Which of the two it is follows from the folder that has rebuild.json,
so no file can contradict it.
"""

import ctypes
import errno
import json
import os
import shutil
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from enum import StrEnum
from pathlib import Path

from service.errors import CheckpointError
from service.spark.files import Local, local, unusable
from service.spark.internals import state_files

SUFFIX = ".rebuild"
NAME = "rebuild.json"
FORMAT = 1

_RENAME_EXCHANGE = 2
_AT_FDCWD = -100
_FORGET = "`tidemark rebuild --forget --config FILE`"


class Step(StrEnum):
    """What a rebuild has done."""

    RUNNING = "running"
    """It reads the topics."""
    COMPARED = "compared"
    """It had caught up with the service, and its values were compared."""
    FORGOTTEN = "forgotten"
    """The folder that the service does not use is being removed: it cannot be used any more."""


@dataclass(frozen=True, slots=True)
class Record:
    """The content of rebuild.json. `compared` are the counts of the last comparison, {} before it.

    `complete_from_ms` is the event time from which the new checkpoint has all readings, 0 for all records, None if not known yet.
    """

    step: Step = Step.RUNNING
    complete_from_ms: int | None = None
    compared: Mapping[str, int] | None = None


@dataclass(frozen=True, slots=True)
class Folders:
    """The folders of a checkpoint on this machine, and of its rebuild. Methods raise CheckpointError, or SetupError."""

    used: Path
    beside: Path

    @classmethod
    def of(cls, checkpoint: str) -> "Folders":
        """Raises CheckpointError for a checkpoint that is not on this machine: no other file system exchanges two folders."""
        path = local(checkpoint)
        if path is None:
            what = f"service.checkpoint = {checkpoint!r} is not a folder of this machine"
            raise CheckpointError(
                what, remedy="Rebuild with another service.checkpoint: docs/operator/procedures.md#rebuild-from-kafka"
            )
        used = Path(os.path.abspath(path))
        return cls(used, used.with_name(used.name + SUFFIX))

    @property
    def is_switched(self) -> bool:
        """Whether the service has the rebuilt checkpoint."""
        return (self.used / NAME).exists()

    @property
    def is_begun(self) -> bool:
        """Whether a rebuilt checkpoint is beside that of the service."""
        return (self.beside / NAME).exists()

    def begin(self) -> None:
        """Make the new folder if it does not exist."""
        if self.is_switched:
            what = f"{self.used} is a rebuilt checkpoint already, and {self.beside} is the former one"
            raise CheckpointError(what, remedy=f"Remove what --undo needs with {_FORGET}, then rebuild again")
        if self.is_begun:
            return
        if self.beside.exists() and any(self.beside.iterdir()):
            what = f"{self.beside} exists and has no {NAME}: it is not of a rebuild"
            raise CheckpointError(what, remedy="Move it away")
        try:
            self.beside.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            what = f"{self.beside}: {error}"
            raise unusable(what, remedy="Let this user write beside service.checkpoint") from error
        self.write(Record())

    def read(self) -> Record:
        """Return the record of the rebuild, of whichever folder has it."""
        folder = self.used if self.is_switched else self.beside
        try:
            document = json.loads((folder / NAME).read_bytes())
            if document.pop("format") != FORMAT:
                what = f"{folder / NAME} is of another version"
                raise CheckpointError(what, remedy="Use the version of Tidemark that began the rebuild")
            return Record(**{**document, "step": Step(document["step"])})
        except FileNotFoundError as error:
            what = f"{self.used} has no rebuild"
            raise CheckpointError(what, remedy="Begin one with `tidemark rebuild --config FILE`") from error
        except (OSError, ValueError, KeyError, TypeError) as error:
            what = f"{folder / NAME} cannot be read: {error}"
            raise CheckpointError(what, remedy=f"Give the rebuild up: {_FORGET}, and begin another one") from error

    def write(self, record: Record) -> None:
        """Replace the record, in the folder that has it."""
        folder = self.used if self.is_switched else self.beside
        try:
            Local(folder).replace(NAME, (json.dumps({"format": FORMAT, **asdict(record)}, indent=1) + "\n").encode())
        except OSError as error:
            what = f"{folder / NAME}: {error}"
            raise unusable(what, remedy="Mend the folder and repeat the command") from error

    def require_usable(self) -> Record:
        """Return the record; raise CheckpointError if the other folder is being removed."""
        record = self.read()
        if record.step is Step.FORGOTTEN:
            what = f"{self.beside} is being removed"
            raise CheckpointError(what, remedy=f"Finish that: {_FORGET}")
        return record

    def exchange(self) -> None:
        """Exchange the names of the two folders, in one step."""
        library = ctypes.CDLL(None, use_errno=True)
        names = os.fsencode(self.used), os.fsencode(self.beside)
        if library.renameat2(_AT_FDCWD, names[0], _AT_FDCWD, names[1], _RENAME_EXCHANGE):
            number = ctypes.get_errno()
            what = f"{self.used} and {self.beside} cannot be exchanged: {os.strerror(number)}"
            remedy = "Repeat the command"
            if number in {errno.EINVAL, errno.ENOSYS, errno.EXDEV, errno.EBUSY, errno.ENOTSUP}:
                remedy = "Both must be folders of one file system that can exchange names (ext4, xfs, btrfs, tmpfs), no mounts"
            raise CheckpointError(what, remedy=remedy)
        parent = os.open(self.used.parent, os.O_RDONLY)
        try:
            os.fsync(parent)
        finally:
            os.close(parent)

    def settle(self, place: Path) -> None:
        """Let the state of the new checkpoint name files below `place`, before the checkpoint is used there."""
        folder = Local(self.beside)
        try:
            state_files.relocate(folder, place)
        except (OSError, ValueError, KeyError, TypeError) as error:
            what = f"{self.beside}: the metadata of its state cannot be changed: {error}"
            raise unusable(what, remedy=f"Give the rebuild up: {_FORGET}, and begin another one") from error

    def give_up(self) -> None:
        """Note that the folder that the service does not use is being removed."""
        self.write(Record(Step.FORGOTTEN))

    def remove(self) -> None:
        """Remove the folder that the service does not use, and the record. May be repeated after a crash."""
        try:
            if not self.is_switched and not self.is_begun:
                if self.beside.exists() and not any(self.beside.iterdir()):
                    self.beside.rmdir()
                return
            self.give_up()
            for path in list(self.beside.iterdir()) if self.beside.exists() else []:
                if path.name != NAME:  # the last file: without it the folder would not be known as a rebuild's
                    shutil.rmtree(path) if path.is_dir() else path.unlink()
            (self.beside / NAME).unlink(missing_ok=True)
            if self.beside.exists():
                self.beside.rmdir()
            (self.used / NAME).unlink(missing_ok=True)
        except OSError as error:
            what = f"{self.beside}: {error}"
            raise unusable(what, remedy="Repeat the command") from error
