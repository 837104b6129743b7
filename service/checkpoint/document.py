"""The own files of a checkpoint: one reader, one writer and one text of errors.

A `Document` is a file of JSON whose content is a type that pydantic validates. `content` and `store` are for other files.
docs/operator/checkpoint.md lists all files. Every error names the file, the first field that is wrong, and the remedy.
"""

import json
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Generic, TypeVar

from pydantic import TypeAdapter, ValidationError

from service.errors import CheckpointError
from service.spark.files import RESTORE, Folder, Local, unusable

_WRITABLE = "Let the service's user write there"

T = TypeVar("T")


@dataclass(frozen=True)
class Document(Generic[T]):
    """A file of the checkpoint. `name` is that of the file, or of the folder of numbered ones: their names are arguments.

    `kind` is the type of the content: frozen dataclasses, models, tuples. A field `format` of a Literal type has the versions of
    the file that can be read. Fields that the type lacks are ignored, unless the type forbids them.
    `is_synced`: a file of this machine is on the disk when `write` returns. A file that is written with each batch is not:
    Spark does not sync its own logs (4.1.4), and one of both is of no use without the other.
    `omits_none`: a member that is None is left out.
    """

    name: str
    kind: Any
    remedy: str = RESTORE
    indent: int | None = None
    is_synced: bool = True
    omits_none: bool = False

    def read(self, folder: Folder, name: str = "") -> T | None:
        """Return the content, None without the file. Raises CheckpointError."""
        try:
            return self._decoded(folder.read(name or self.name), folder, name or self.name)
        except FileNotFoundError:
            return None
        except OSError as error:
            raise unreadable(folder, name or self.name, error, self.remedy) from error

    def required(self, folder: Folder, name: str = "") -> T:
        """Return the content. Raises CheckpointError, also without the file."""
        return self._decoded(content(folder, name or self.name, self.remedy), folder, name or self.name)

    def write(self, files: Folder, value: T, name: str = "") -> None:
        """Write the file in full or not at all. Raises CheckpointError, or SetupError for a full disk."""
        store(files, name or self.name, self.encode(value), is_synced=self.is_synced)

    def encode(self, value: T) -> bytes:
        """Return the text of a content."""
        text = self._adapter.dump_json(value, indent=self.indent, by_alias=True, exclude_none=self.omits_none)
        return text if self.indent is None else text + b"\n"

    def _decoded(self, text: bytes, folder: object, name: str) -> T:
        try:
            value: T = self._adapter.validate_json(text)
        except ValidationError as error:
            raise self._refused(error, text, folder, name) from error
        return value

    def _refused(self, error: ValidationError, text: bytes, folder: object, name: str) -> CheckpointError:
        first = error.errors(include_url=False)[0]
        field = ".".join(map(str, first["loc"]))
        if field == "format" and first["type"] == "literal_error":
            made_by = json.loads(text).get("application")
            what = f"{folder}/{name} is of format {first['input']}, this version reads {first['ctx']['expected']}"
            way = f"Start version {made_by}, which wrote it" if made_by else "Start the version that wrote it"
            return CheckpointError(what, remedy=way)
        return damaged(folder, name, f"{field}: {first['msg']}" if field else first["msg"], self.remedy)

    @cached_property
    def _adapter(self) -> TypeAdapter[Any]:
        return TypeAdapter(self.kind)


def content(folder: Folder, name: str, remedy: str = RESTORE) -> bytes:
    """Return the bytes of a file. Raises CheckpointError."""
    try:
        return folder.read(name)
    except OSError as error:
        raise unreadable(folder, name, error, remedy) from error


def store(files: Folder, name: str, data: bytes, *, is_synced: bool = False) -> None:
    """Write a file in full or not at all. Raises CheckpointError, or SetupError for a full disk."""
    with changing(files, name):
        if is_synced and isinstance(files, Local):
            files.replace(name, data, is_synced=True)
        else:
            files.replace(name, data)


@contextmanager
def changing(files: object, name: str) -> Iterator[None]:
    """Let an OSError of the block name the files that it writes or removes: a CheckpointError, or SetupError for a full disk."""
    try:
        yield
    except OSError as error:
        raise unusable(f"{files}/{name} cannot be written: {error}", remedy=_WRITABLE) from error


def unreadable(folder: object, name: str, error: Exception, remedy: str = RESTORE) -> CheckpointError:
    """Return the error for a file that cannot be read."""
    what = f"{folder}/{name} cannot be read: {error}"
    return CheckpointError(what, remedy=remedy)


def damaged(folder: object, name: str, error: object, remedy: str = RESTORE) -> CheckpointError:
    """Return the error for a file whose content is not what was written."""
    what = f"{folder}/{name} is damaged: {error}"
    return CheckpointError(what, remedy=remedy)
