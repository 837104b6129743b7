"""A folder of files on any file system of Hadoop: a local path, `file:`, `hdfs:`, `s3a:`; read and written by Spark's JVM.

All file systems are used with the settings and credentials of the query. Names are relative to the folder, with / between their
parts. An OSError has the name of the file and the file system's message. `Local` is the same for a folder of this machine,
without a JVM.

On a local file system Hadoop keeps CRC-32s of each file `x` in `.x.crc`, and compares them when it reads. Hadoop does not detect
a file that lacks complete blocks of 512 bytes at its end, or is empty; `Local.problem` does.
"""

import os
import re
import struct
import zlib
from collections.abc import Iterator
from contextlib import closing, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias
from urllib.parse import urlsplit

from py4j.protocol import Py4JJavaError

from service.errors import CheckpointError, SetupError

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

FULL = re.compile(r"No space left on device|[Qq]uota ?[Ee]xceeded")
"""The messages of file systems without free space."""
RESTORE = (
    "Restore the complete checkpoint, or rebuild with a new one: see docs/operator/procedures.md#a-damaged-checkpoint"
)
MAKE_ROOM = (
    "Make room on the checkpoint's disk and start again: docs/operator/procedures.md#the-checkpoints-disk-is-full"
)
NOT_LOADED = re.compile(
    r"UnsatisfiedLinkError|SnappyError|failed to map segment|No native library found|"
    r"Could not initialize class org\.(xerial|rocksdb)"
)
"""The classes and messages of libraries that Java cannot load from its temporary folder; SQLite's driver has its own message."""
MAKE_LOADABLE = (
    "Java loads libraries from its temporary folder: mount it without noexec, or start with "
    "SPARK_SUBMIT_OPTS=-Djava.io.tmpdir=FOLDER"
)
MANAGER = "spark.sql.streaming.checkpointFileManagerClass"
_OBJECT_STORES = frozenset({"s3a"})
_EXISTS = ("FileAlreadyExistsException", "RemoteFileChangedException")
"""Hadoop's and Spark's own; that of S3 for a condition that is not met."""
_LACKS_S3 = "S3AFileSystem not found"
_CONDITIONAL = "fs.option.create.conditional.overwrite"


@dataclass(frozen=True, slots=True)
class File:
    """A file below a folder; `size` in bytes."""

    name: str
    size: int


class Local:
    """A folder of this machine, without a JVM: before the JVM starts, or after it has failed."""

    def __init__(self, root: Path) -> None:
        self.root = root

    def __str__(self) -> str:
        return str(self.root)

    def names(self, folder: str) -> list[str]:
        """Return the names of files directly in a sub-folder; [] if it does not exist."""
        try:
            return [name for name in os.listdir(self.root / folder) if not name.startswith(".")]
        except (FileNotFoundError, NotADirectoryError):
            return []

    def walk(self) -> Iterator[File]:
        """Yield the files below the folder, in no order, without hidden ones; none if it does not exist."""
        for path in self.root.rglob("*"):
            with suppress(FileNotFoundError):  # a running query cleans up
                if not path.name.startswith(".") and path.is_file():
                    yield File(path.relative_to(self.root).as_posix(), path.stat().st_size)

    def read(self, name: str) -> bytes:
        """Return a file's content. Raises FileNotFoundError or another OSError."""
        return (self.root / name).read_bytes()

    def replace(self, name: str, content: bytes, *, is_synced: bool = False) -> None:
        """Write a file in full or not at all, and create its folder if needed; OSError.

        With `is_synced` the content is on the disk before the file has its name, and the name when this returns.
        """
        path = self.root / name
        new = path.with_name(f".{path.name}.new")
        try:
            new.write_bytes(content)
        except FileNotFoundError:
            path.parent.mkdir(parents=True, exist_ok=True)
            new.write_bytes(content)
        if is_synced:
            _sync(new)
        # Hadoop's checksums of a former content, which the JVM has written, would refuse this one.
        path.with_name(f".{path.name}.crc").unlink(missing_ok=True)
        os.replace(new, path)
        if is_synced:
            _sync(path.parent)

    def remove(self, name: str) -> None:
        """Remove a file if it exists; OSError."""
        (self.root / name).unlink(missing_ok=True)

    def move(self, name: str, to: str) -> None:
        """Give a file another name, which no file has, in one step. FileNotFoundError if there is no file."""
        (self.root / to).parent.mkdir(parents=True, exist_ok=True)
        os.replace(self.root / name, self.root / to)

    def problem(self, name: str) -> str:
        """Read a file to its end; the reason why it is damaged, as far as the file system detects it, or ""."""
        path = self.root / name
        sums = path.with_name(f".{path.name}.crc")
        try:
            content = path.read_bytes()
            if not sums.exists():
                return ""
            magic, block, *expected = struct.unpack(f">4sI{(sums.stat().st_size - 8) // 4}I", sums.read_bytes())
        except FileNotFoundError:
            return "is missing"
        except OSError as error:
            return f"cannot be read: {error.strerror}"
        except struct.error:
            return f"cannot be checked: {sums.name} is damaged"
        actual = [zlib.crc32(content[start : start + block]) for start in range(0, len(content), block)]
        if magic != b"crc\0" or actual == expected:
            return ""
        blocks = zip(actual, expected, strict=False)
        at = next((n for n, (mine, its) in enumerate(blocks) if mine != its), min(len(actual), len(expected))) * block
        return f"is damaged: {len(content)} bytes, other than what was written from byte {at} on"


class Files:
    """A folder, through the JVM. Hadoop verifies checksums (of blocks, or in local .crc files) while it reads."""

    def __init__(self, spark: "SparkSession", root: str) -> None:
        from service.spark.internals import jvm  # noqa: PLC0415 - it imports PySpark, which `Local` does not need

        self.root = root
        self._jvm = jvm.of(spark)
        self._conf = jvm.hadoop_settings(spark)
        try:
            with _named(root):
                self._path = self._jvm.org.apache.hadoop.fs.Path(root)
                self._system = self._path.getFileSystem(self._conf)
        except OSError as error:
            if _LACKS_S3 not in str(error):
                raise
            what = f"{root}: Spark lacks the jars for S3"
            raise SetupError(what, remedy="Run `tidemark jars --group s3` on every host") from error

    def __str__(self) -> str:
        return self.root

    def names(self, folder: str) -> list[str]:
        return [str(status.getPath().getName()) for status in self._listed(folder)]

    def walk(self) -> Iterator[File]:
        with _named(self.root):
            if not self._system.exists(self._path):
                return
            prefix = len(str(self._system.makeQualified(self._path)).rstrip("/")) + 1
            listing = self._system.listFiles(self._path, True)
            while listing.hasNext():
                status = listing.next()
                if not str(status.getPath().getName()).startswith("."):
                    yield File(str(status.getPath())[prefix:], int(status.getLen()))

    def read(self, name: str) -> bytes:
        with _named(name), closing(self._system.open(self._at(name))) as stream:
            return bytes(self._jvm.org.apache.commons.io.IOUtils.toByteArray(stream))

    def problem(self, name: str) -> str:
        try:
            with _named(name), closing(self._system.open(self._at(name))) as stream:
                self._jvm.org.apache.commons.io.IOUtils.consume(stream)
        except FileNotFoundError:
            return "is missing"
        except OSError as error:
            return f"is damaged: {error}"
        return ""

    def create(self, name: str, content: bytes) -> None:
        """Write a new file in full or not at all, as Spark writes its own logs; FileExistsError."""
        self._write(name, content, overwrite=False)

    def replace(self, name: str, content: bytes) -> None:
        """Write a file as `create` does; the file may exist, and its folder need not."""
        self._write(name, content, overwrite=True)

    def remove(self, name: str) -> None:
        """Remove a file if it exists."""
        with _named(name):
            self._system.delete(self._at(name), False)

    def move(self, name: str, to: str) -> None:
        """Give a file another name, which no file has, in one step where the file system can. FileNotFoundError."""
        with _named(name):
            self._system.getFileStatus(self._at(name))
            self._system.mkdirs(self._at(to.rpartition("/")[0]))
            if not self._system.rename(self._at(name), self._at(to)):
                raise OSError(f"{name}: cannot be renamed to {to}")

    def remove_folder(self, name: str) -> None:
        """Remove a sub-folder with all that it has, if it exists."""
        with _named(name):
            self._system.delete(self._at(name), True)

    def folders(self, folder: str) -> list[str]:
        """Return the names of folders directly in a sub-folder; [] if it does not exist."""
        return [str(status.getPath().getName()) for status in self._listed(folder) if status.isDirectory()]

    def copy(self, name: str, to: str) -> None:
        """Copy a file within the folder, without its bytes passing through Python. A new file is not seen before it is complete
        only on object stores."""
        with _named(name):
            source, target = self._at(name), self._at(to)
            self._jvm.org.apache.hadoop.fs.FileUtil.copy(
                self._system, source, self._system, target, False, True, self._conf
            )

    def move_folder(self, name: str, to: str) -> None:
        """Move the files below a folder, one by one: after an interruption the same call moves the others."""
        for file in list(self.walk()):
            if file.name.startswith(f"{name}/"):
                target = f"{to}/{file.name.removeprefix(f'{name}/')}"
                self.remove(target)
                self.move(file.name, target)
        self.remove_folder(name)

    def _write(self, name: str, content: bytes, *, overwrite: bool) -> None:
        if not overwrite and urlsplit(self.root).scheme in _OBJECT_STORES:
            self._put_new(name, content)
            return
        with _named(name):
            from service.spark.internals import jvm  # noqa: PLC0415

            # createAtomic makes a temporary file beside it and renames that when it is closed.
            manager = jvm.file_manager(self._jvm, self._path, self._conf)
            folder = self._at(name.rpartition("/")[0])
            if not manager.exists(folder):
                manager.mkdirs(folder)
            stream = manager.createAtomic(self._at(name), overwrite)
            try:
                stream.write(content)
            except BaseException:
                stream.cancel()
                raise
            stream.close()

    def _put_new(self, name: str, content: bytes) -> None:
        """Write an object on the condition that there is none of its name: the store decides, not a look before the write."""
        with _named(name):
            builder = self._system.createFile(self._at(name)).overwrite(False).must(_CONDITIONAL, True)
            stream = builder.build()
            stream.write(content)
            stream.close()

    def _listed(self, folder: str) -> list[Any]:
        with _named(folder):
            try:
                return list(self._system.listStatus(self._at(folder)))
            except Py4JJavaError as error:
                if _is_missing(error):
                    return []
                raise

    def _at(self, name: str) -> Any:
        return self._jvm.org.apache.hadoop.fs.Path(self._path, name) if name else self._path


Folder: TypeAlias = Files | Local


def manager(root: str) -> str:
    """Return the class by which Spark commits files below `root`, "" for that of deploy/spark-defaults.conf.

    The class for local files renames with FileSystem.rename. On HDFS and S3 that call leaves an existing file as it is and
    returns false, and the class only logs a warning (Spark 4.1.1): a file would silently keep its former content.
    FileContext.rename replaces it, or raises. S3 has no rename: an object is written under its name, and appears when it is
    complete.
    """
    scheme = urlsplit(root).scheme
    if scheme in {"", "file"}:
        return ""
    if scheme in _OBJECT_STORES:
        return "org.apache.spark.internal.io.cloud.AbortableStreamBasedCheckpointFileManager"
    from service.spark.internals import jvm  # noqa: PLC0415

    return f"{jvm.MANAGERS}FileContextBasedCheckpointFileManager"


def unusable(what: str, *, remedy: str) -> CheckpointError | SetupError:
    """The error for a checkpoint file that cannot be read or written: SetupError for a full disk, else CheckpointError."""
    return SetupError(what, remedy=MAKE_ROOM) if FULL.search(what) else CheckpointError(what, remedy=remedy)


def local(root: str) -> Path | None:
    """The folder of this machine that `root` names; None when it is on another file system.

    As in Hadoop's Path, a # or ? is a character of the name.
    """
    if urlsplit(root).scheme not in {"", "file"}:
        return None
    path = root.removeprefix("file:")
    return Path(f"/{path[2:].partition('/')[2]}" if path.startswith("//") else path)


def opened(session: "SparkSession", root: str) -> Folder:
    """Return the folder `root`: without the JVM if it is of this machine, else by the session's file systems. Raises as Files."""
    path = local(root)
    return Local(path) if path is not None else Files(session, root)


def _sync(path: Path) -> None:
    """Wait until a file, or the names in a folder, are on the disk."""
    number = os.open(path, os.O_RDONLY)
    try:
        os.fsync(number)
    finally:
        os.close(number)


@contextmanager
def _named(name: str) -> Iterator[None]:
    try:
        yield
    except Py4JJavaError as error:
        cause: Any = error.java_exception
        said = next(iter(str(cause.getMessage()).splitlines()), "")  # a NameNode sends its stack, too
        text = f"{cause.getClass().getSimpleName()}: {said}"
        family = OSError
        if _is_missing(error):
            family = FileNotFoundError
        elif cause.getClass().getSimpleName().endswith(_EXISTS):
            family = FileExistsError
        raise family(f"{name}: {text}") from error


def _is_missing(error: Py4JJavaError) -> bool:
    return bool(error.java_exception.getClass().getSimpleName() in {"FileNotFoundException", "NoSuchFileException"})
