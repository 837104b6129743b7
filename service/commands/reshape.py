"""`tidemark checkpoint reshape`: give a checkpoint another number of buckets and of shuffle partitions.

    1  take the lease, so that no service reads or writes
    2  read the state after the last committed batch, and divide its entries by the new number
    3  let Spark write them, as the state of a query of its own in reshape/query
    4  read them back: the numbers of entries and their digest must be those of 2
    5  copy the files beside those of the checkpoint's own state, under the name of the last committed batch
    6  switch: service/checkpoint/shape.py; read once more, and go back if that differs

Before 6 nothing of the checkpoint has changed. What a kill has interrupted in 6 is finished by the next start, or by the next
command. The files of the former state stay, so `--undo` is a switch back, as long as no batch was committed since. `--forget`
removes them. All devices and windows are in this process's memory, twice: 1.8 GB for a million devices with a window each.
"""

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pyarrow as pa
from py4j.protocol import Py4JJavaError
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession

from service import failpoint
from service.admission import readings
from service.aggregation import seen_keys, sessions, windows
from service.aggregation.seen_keys import Place
from service.checkpoint import logs, manifest, resume, shape, view_versions
from service.checkpoint.shape import Shape, Switch
from service.commands import offline, verify
from service.daemon.lease import Lease
from service.errors import CheckpointError, SettingsError
from service.pipeline.command_session import started
from service.reference.attributes import DEVICE
from service.settings import Settings, View
from service.spark import session
from service.spark.files import MANAGER, RESTORE, Files, Local, local, unusable
from service.spark.internals import commit_log, state_files
from state import codec, distribution, duplicates, reader
from state.columns import array, codes_of, ints
from state.distribution import Digest
from state.layout import BucketState, empty_state
from state.processor import SEEDED, Seed

MOST_BUCKETS = 4096
"""As of the setting `sessions.buckets`."""

_QUERY = f"{shape.FOLDER}/query"
_PIECES = f"{shape.FOLDER}/pieces"
_KEYS = f"{shape.FOLDER}/keys.after"
_WORK = (_QUERY, _PIECES, _KEYS, shape.ASIDE, f"{shape.FOLDER}/keys.before")
_REPORT = "The checkpoint is as it was. Please report this"
_PARTITIONS = "spark.sql.shuffle.partitions"
_CHANGELOG = "spark.sql.streaming.stateStore.rocksdb.changelogCheckpointing.enabled"

Say = Callable[[str], object]
States = Mapping[int, BucketState]


@dataclass(frozen=True, slots=True)
class Target:
    """The numbers that the checkpoint is to have; without `partitions` one for each bucket, at most 16."""

    buckets: int
    partitions: int

    @classmethod
    def of(cls, buckets: int, partitions: int | None) -> "Target":
        """Raises SettingsError for numbers that no checkpoint may have."""
        wanted = min(buckets, session.MOST_BUCKETS) if partitions is None else partitions
        if not 0 < buckets <= MOST_BUCKETS:
            what = f"--buckets {buckets} is not from 1 to {MOST_BUCKETS}"
            raise SettingsError(what, remedy="Give one bucket for each core that the operator is to use")
        if not 0 < wanted <= buckets:
            what = f"--partitions {wanted} is not from 1 to {buckets}, the number of buckets"
            raise SettingsError(
                what, remedy="A partition without a bucket only costs: give at most one for each bucket"
            )
        return cls(buckets, wanted)


@contextmanager
def reshaping(settings: Settings, say: Say) -> Iterator["Reshaping"]:
    """Hold the lease, and give what can be done. Raises TidemarkError; the checkpoint is then as it was, or finished later."""
    with offline.term(settings, say) as lease, started(settings) as spark:
        try:
            yield Reshaping(spark, settings, lease, say)
        except OSError as error:
            raise unusable(f"{settings.service.checkpoint}: {error}", remedy=RESTORE) from error


class Reshaping:
    def __init__(self, spark: SparkSession, settings: Settings, lease: Lease, say: Say) -> None:
        self.spark, self.settings, self.lease, self.say = spark, settings, lease, say
        self.root = settings.service.checkpoint
        self.files = resume.files_of(spark, settings)

    def to(self, target: Target) -> None:
        """Change the number of buckets and partitions."""
        batch, before = self._current()
        if (before.buckets, before.partitions) == (target.buckets, target.partitions):
            self.say(f"{self.files} has {before} already")
            return
        self._clean()
        states = self._states(self.root, batch)
        whole = distribution.digest(list(states.values()))
        self.say(f"{self.files}, after batch {batch}: {before}; {whole}")
        self._write(self._divided(states, batch, target.buckets), target)
        self._require(whole, f"{self.root}/{_QUERY}", 0)
        after = Shape(target.buckets, self._copy(batch, before.partitions, target.partitions))
        self._write_keys(states, batch, before.buckets, target.buckets)
        failpoint.hit("reshape_staged")
        offline.confirm(self.lease, "The checkpoint is as it was")
        switch = Switch(batch, before, after)
        shape.begin(self.files, switch)
        try:
            self._require(whole, self.root, batch)
        except CheckpointError:
            shape.begin(self.files, replace(switch, is_back=True))
            raise
        self.files.remove_folder(_QUERY)
        self.files.remove_folder(_PIECES)
        self.say(f"{self.files} has {after}; read back: {whole}")
        if self.settings.sessions.buckets not in {None, target.buckets}:
            self.say(f"Set sessions.buckets = {target.buckets}, or leave it out, before the service starts")

    def back(self) -> None:
        """Give the checkpoint the shape that it had before the last change."""
        batch, current = self._current()
        switch = shape.DOCUMENT.read(self.files)
        if switch is None or switch.is_back:
            what = f"{self.files}: there is no reshape to undo"
            raise CheckpointError(what, remedy="Give the wanted number with --buckets")
        if switch.batch != batch:
            what = f"{self.files}: batch {batch} is committed, and the reshape was after batch {switch.batch}"
            raise CheckpointError(what, remedy=f"Go back by a reshape of its own: --buckets {switch.before.buckets}")
        offline.confirm(self.lease, "The checkpoint is as it was")
        shape.begin(self.files, replace(switch, is_back=True))
        found = distribution.digest(list(self._states(self.root, batch).values()))
        self.say(f"{self.files} has {switch.before} again, instead of {current}; read back: {found}")

    def forget(self) -> None:
        """Remove the files of the shape that the checkpoint does not have any more."""
        _, current = self._current()
        self._clean()
        self.say(f"{self.files} has {current}; files of other numbers are removed")

    def _current(self) -> tuple[int, Shape]:
        """The last committed batch and the shape; raises CheckpointError where nothing can be reshaped."""
        shape.finish(self.files)
        logs.require_whole(self.files)
        stored = manifest.read(self.files)
        batch = commit_log.last(self.files)
        if batch is None:
            what = f"{self.files} has no committed batch: there is no state to reshape"
            raise CheckpointError(what, remedy="Remove the folder, and start with the wanted sessions.buckets")
        if stored is None:
            what = f"{self.files} has no {manifest.NAME}: the number of its buckets is not known"
            raise CheckpointError(what, remedy="Restore that file, or write it with `tidemark checkpoint init`")
        manifest.require(str(self.files), stored, stored.for_this_version())
        return batch, shape.of(self.files, batch)

    def _clean(self) -> None:
        """Remove what an earlier reshape has left, also one that was killed. After this it cannot be undone."""
        self.files.remove(shape.DOCUMENT.name)
        for name in _WORK:
            self.files.remove_folder(name)

    def _states(self, root: str, batch: int, remedy: str = RESTORE) -> dict[int, BucketState]:
        try:
            return dict(reader.states(self.spark, root, batch))
        except (codec.CodecError, PySparkException, Py4JJavaError) as error:
            what = f"{root}: the state after batch {batch} cannot be read: {verify.message(error)}"
            raise CheckpointError(what, remedy=remedy) from error

    def _require(self, whole: Digest, root: str, batch: int) -> None:
        found = distribution.digest(list(self._states(root, batch, _REPORT).values()))
        if found != whole:
            what = f"{root}: the reshaped state has {found}, which are not the {whole} of before"
            raise CheckpointError(what, remedy=_REPORT)

    def _divided(self, states: States, batch: int, buckets: int) -> dict[int, BucketState]:
        devices = self._buckets_of(states, buckets)
        roots = self._roots(batch)
        parts: dict[int, list[BucketState]] = {}
        for state in states.values():
            of_devices = distribution.of_texts(state.devices["device"], devices)
            of_windows = _of_windows(state.windows, devices, roots, buckets)
            for bucket, part in distribution.split(state, of_devices, of_windows).items():
                parts.setdefault(bucket, []).append(part)
        return {bucket: distribution.joined(each) for bucket, each in parts.items()}

    def _roots(self, batch: int) -> dict[str, str | None]:
        """By the name in keys of each view, also of those that the next batch begins with, the name of the view that its readings
        are folded for, by which keys have their buckets; None for a view by device."""
        versions = view_versions.Log(self.files).at(batch + 1)
        views = {view.name: view for view in (versions.views if versions is not None else self.settings.views)}

        def root(view: View) -> str:
            return view.name if view.reads is None else root(views[view.reads])

        return {name: None if view.by == (DEVICE,) else root(view) for name, view in views.items()}

    def _buckets_of(self, states: States, buckets: int) -> dict[str, int]:
        """The bucket of each device, and of each key of a window: computed by Spark, as admission computes it."""
        texts = {text for state in states.values() for text in array(state.devices["device"]).to_pylist()}
        for state in states.values():
            texts.update(array(state.windows["key"]).dictionary.to_pylist())
        table = pa.table({DEVICE: pa.array(sorted(texts), pa.string())})
        frame: Any = self.spark.createDataFrame(table)
        found = frame.select(DEVICE, readings.bucket_of(DEVICE, buckets).alias("bucket")).toArrow()
        return dict(zip(found[DEVICE].to_pylist(), found["bucket"].to_pylist(), strict=True))

    def _write(self, states: States, target: Target) -> None:
        """Let a query of its own write the states, each version as a snapshot."""
        pieces, query = f"{self.root}/{_PIECES}", f"{self.root}/{_QUERY}"
        # Without a row there would be no batch: an empty state is not stored.
        states = states or {0: empty_state(sessions.rules(self.settings))}
        rows = {"bucket": list(states), "data": [codec.encode(state) for state in states.values()]}
        table = pa.table(rows, pa.schema([("bucket", pa.int32()), ("data", pa.binary())]))
        other: Any = self.spark.newSession()
        for name, value in (
            (_PARTITIONS, target.partitions),
            (_CHANGELOG, "false"),
            (MANAGER, self.spark.conf.get(MANAGER)),
        ):
            other.conf.set(name, str(value))
        other.createDataFrame(table).write.parquet(pieces)
        frame = other.readStream.schema("bucket int, data binary").parquet(pieces)
        seeded = frame.groupBy("bucket").transformWithStateInPandas(
            statefulProcessor=Seed(), outputStructType=SEEDED, outputMode="Update", timeMode="None"
        )
        writer = seeded.writeStream.format("noop").outputMode("update").option("checkpointLocation", query)
        try:
            writer.trigger(availableNow=True).start().awaitTermination()
        except PySparkException as error:
            what = f"{query}: the state of {target.buckets} buckets cannot be written: {verify.message(error)}"
            raise unusable(what, remedy="The checkpoint is as it was") from error

    def _copy(self, batch: int, before: int, partitions: int) -> tuple[str, ...]:
        """Copy the files of the query's state, as those of an attempt at the last committed batch; return the attempt's ids."""
        staged = Files(self.spark, f"{self.root}/{_QUERY}")
        attempts = tuple(commit_log.attempts(staged, 0).values())
        if len(attempts) != partitions:
            raise CheckpointError(f"{staged} has {len(attempts)} partitions, not {partitions}", remedy=_REPORT)
        for partition, attempt in enumerate(attempts):
            source, target = f"{state_files.OPERATOR}/{partition}", shape.place(partition, before)
            for name in staged.names(f"{source}/{state_files.TABLES}"):
                tables = f"{state_files.TABLES}/{name}"
                self.files.copy(f"{_QUERY}/{source}/{tables}", f"{target}/{tables}")
            written, wanted = (state_files.snapshot(at, of, attempt) for at, of in ((source, 0), (target, batch)))
            self.files.copy(f"{_QUERY}/{written}", wanted)
        return attempts

    def _write_keys(self, states: States, batch: int, before: int, after: int) -> None:
        """Divide the keys of readings, which have hashes of devices: those of a device that the state lacks go to all buckets."""
        root = local(self.root)
        if root is None or not (root / seen_keys.FOLDER).exists():
            return
        keys = pa.concat_tables([seen_keys.stored(root, bucket, batch) for bucket in range(before)])
        devices = self._buckets_of(states, after)
        names = sorted(devices)
        known = dict(zip(duplicates.hashes(pa.array(names, pa.string())).tolist(), names, strict=True))
        of_keys = np.array(
            [devices[known[device]] if device in known else -1 for device in ints(keys, "device").tolist()]
        )
        files, place = Local(root / _KEYS), Place(batch, self.lease.epoch)
        for bucket in range(after):
            chosen = pa.array((of_keys == bucket) | (of_keys == -1), pa.bool_())
            seen_keys.write_all(files, bucket, place, keys.filter(chosen))


def _of_windows(
    table: pa.Table, devices: Mapping[str, int], roots: Mapping[str, str | None], buckets: int
) -> "np.ndarray[Any, np.dtype[np.int64]]":
    """The bucket of each window: the fold before the shuffle sends its parts there, or those of the view that it is of."""
    view, key = array(table["view"]), array(table["key"])
    result = np.zeros(table.num_rows, np.int64)
    for code, name in enumerate(view.dictionary.to_pylist()):
        rows = codes_of(view) == code
        root = roots.get(name, name)
        if root is None:
            of_keys = distribution.of_texts(key.dictionary, devices)
        else:
            of_keys = windows.buckets_of(root, key.dictionary, buckets).astype(np.int64)
        result[rows] = of_keys[codes_of(key)[rows]]
    return result
