"""`tidemark rebuild`: make a new checkpoint beside the running service, compare it, and let the service go on from it.

    1  begin      the folder <checkpoint>.rebuild, with the views, skips and column values of the service
    2  run        a second service reads the topics into it, under a prefix of its own, never ahead of the service
                                                                                      service/daemon/rebuilder.py
    3  compare    the closed values of both                                           service/recompute/comparison.py
    4  take over  with --switch: wait until the service is stopped, and take its lease
    5  finish     read to exactly the offsets that the service has published, and stop
    6  switch     have the values republished, and exchange the names of the folders  service/checkpoint/rebuilt.py

Readers keep their prefix. The values stay as they are: the new checkpoint is at the same offsets, and the service goes on to
write by the rules of publish.lua, under a larger epoch. A kill before 6 leaves the service's checkpoint as it was, and the same
command goes on where it was cut off. The exchange is one step.
"""

import shutil
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing, contextmanager, suppress
from dataclasses import dataclass, replace
from datetime import datetime
from functools import partial
from typing import Any

from service import clock, failpoint
from service.admission import column_values
from service.aggregation.sessions import longest_gap_ms
from service.checkpoint import beginnings, event_time, manifest, resume, skips, view_versions
from service.checkpoint.rebuilt import Folders, Record, Step
from service.checkpoint.view_versions import Versions
from service.commands import offline
from service.daemon import owner, rebuilder, starts
from service.daemon.lease import Lease
from service.daemon.rebuilder import Rebuilder
from service.errors import CheckpointError, FencedError
from service.micro_batch import MicroBatch, Offsets
from service.outlets import outbox, recomputed
from service.outlets.outbox import Outbox
from service.pipeline.batch_publisher import Sink
from service.printing import counted
from service.recompute import comparison, job_log, republish
from service.recompute.comparison import Comparison
from service.redis import link
from service.redis.keys import Keys, shards
from service.redis.link import Budget
from service.reference import history
from service.reference.folder import REFERENCE, SharedFolder
from service.rejects.fence import Fence
from service.settings import Settings
from service.spark.files import Local
from service.spark.internals import commit_log, offset_log
from service.units import format_time
from state.watermark import EventTime

NEAR_S = 5.0
"""The rebuild has caught up when it reaches within this time what the service had published at its beginning."""
LOOK_S = 0.5
SAY_S = 10.0
GONE_S = 30.0
"""How long the command waits for the end of a process whose lease it has taken."""
MOST_PARTITIONS = 16

Say = Callable[[str], object]


@dataclass(frozen=True, slots=True)
class Options:
    """`since`: read from this broker's time on, None for all records. `rate`: records a second. `switch`: let the service go on
    from the new checkpoint. `accept`: also with differences."""

    since: datetime | None = None
    rate: int = 20_000
    switch: bool = False
    accept: bool = False


def rebuild(settings: Settings, options: Options, say: Say) -> None:
    """Do the steps that are left; without `switch` those up to the comparison. Raises TidemarkError.

    Ctrl-C and SIGTERM end it; the same command goes on.
    """
    _Rebuild(settings, options, say).run()


def undo(settings: Settings, say: Say) -> None:
    """Let the service go on from the checkpoint that it had before the switch. Raises TidemarkError."""
    folders = Folders.of(settings.service.checkpoint)
    with _stopped(settings, say) as lease, closing(Fence(settings.redis)):
        folders.require_usable()
        if not folders.is_switched:
            what = f"{folders.used} is the checkpoint that the service had"
            raise CheckpointError(what, remedy="There is no switch to undo")
        former = offset_log.position(Local(folders.beside))
        if former is not None:
            resume.require_records(settings.kafka, former.offsets)
        if settings.outlets and (left := recomputed.names(Outbox(Local(folders.used)))):
            what = f"{folders.used}: corrected values in {counted(len(left), 'file')} are not in the outlets yet"
            raise CheckpointError(
                what, remedy="Start the service, stop it when it has written them, and repeat the command"
            )
        _mark(settings, lease.epoch, is_read_again=True)
        offline.confirm(lease, "The checkpoint is as it was")
        folders.exchange()
    say(
        f"{folders.used} is the former checkpoint again; start the service. It reads again what was read since the switch"
    )


def forget(settings: Settings, say: Say) -> None:
    """Remove the checkpoint that the service does not use, and the keys of the rebuild. Raises TidemarkError.

    The keys go first: without a rebuild in the folders, keys under its prefix are those of another program.
    """
    folders = Folders.of(settings.service.checkpoint)
    folders.read()
    own = rebuilder.derived(settings, folders.beside, rate=1, buckets=1)
    with offline.term(own, say):  # no rebuild runs
        folders.give_up()
        removed = _remove_keys(own)
        folders.remove()
    say(f"{folders.beside} and {counted(removed, 'key')} under {own.redis.prefix} are removed")


def remove_values(settings: Settings, say: Say, *, dry: bool = False) -> None:
    """Remove every key under the prefix but the epoch, for a new checkpoint that publishes all values again.

    Raises TidemarkError. `final` of progress never falls, so after a record of the future Redis refuses the windows of a year.
    """
    if dry:
        say(
            f"{counted(sum(len(names) for *_, names in _keys(settings)), 'key')} under {settings.redis.prefix} would be removed"
        )
        return
    with offline.term(settings, say) as lease:
        removed = _remove_keys(settings, kept=frozenset({"lease", "epoch"}))
        offline.confirm(lease, f"{counted(removed, 'key')} are removed")
    say(
        f"{counted(removed, 'key')} under {settings.redis.prefix} are removed; start the service, which publishes them again"
    )


class _Rebuild:
    def __init__(self, settings: Settings, options: Options, say: Say) -> None:
        self.settings, self.options, self.say = settings, options, say
        self.folders = Folders.of(settings.service.checkpoint)
        self.used, self.beside = Local(self.folders.used), Local(self.folders.beside)
        self._failure: BaseException | None = None
        self._follower: threading.Thread | None = None
        self._lease: Lease | None = None
        self._comparison: Comparison | None = None

    def run(self) -> None:
        stored = self._manifest()
        reached = rebuilder.published(self.settings)
        if not reached:
            what = f"Redis has no progress under {self.settings.redis.prefix}: there is no service to compare with"
            raise CheckpointError(what, remedy="Start the service, or name its prefix")
        if set(reached) != set(self.settings.kafka.topics):
            what = f"The service reads {', '.join(sorted(reached))}, the settings name {', '.join(self.settings.kafka.topics)}"
            raise CheckpointError(
                what, remedy="Rebuild with the topics of the service, and change them at its next start"
            )
        self.own, partitions = self._own(stored)
        if not self.folders.is_begun and not self.folders.is_switched:
            _require_no_keys(self.own)
        self.folders.begin()
        self.folders.require_usable()
        self._seed()
        failpoint.hit("rebuild_begun")
        self.runner = Rebuilder(self.settings, self.own, partitions, self._begin)
        try:
            is_whole = self.runner.serve()
            self._end_follower()
            if self._failure is not None:
                raise self._failure
            if is_whole and self._lease is not None and self._is_at_end():
                self._switch(self._lease)
            elif self.options.switch or self._comparison is None:
                self.say("stopped. The same command goes on from here")
        finally:
            self.runner.stop()
            self._end_follower()
            if self._lease is not None:
                self._lease.release()

    def _begin(self) -> None:
        """Prepare the new checkpoint for a query, and follow it. Called under the lease of the rebuild, which one command has.

        Raises CheckpointError if another command has exchanged the folders while this one waited for its lease.
        """
        if self.folders.is_switched or not self.folders.is_begun:
            what = f"{self.folders.beside} is not a new checkpoint any more: another command has switched or removed it"
            raise CheckpointError(what, remedy="Look at what that command has said")
        self.folders.settle(self.folders.beside)
        if self._follower is None:
            self._follower = threading.Thread(target=self._follow, name="tidemark-rebuild", daemon=True)
            self._follower.start()

    def _end_follower(self) -> None:
        if self._follower is not None:
            self._follower.join(GONE_S)

    # Step 1

    def _manifest(self) -> manifest.Manifest:
        stored = manifest.read(self.used)
        if stored is None:
            what = f"{self.folders.used} has no {manifest.NAME}: it is no checkpoint of a service"
            raise CheckpointError(what, remedy="Correct service.checkpoint")
        return stored

    def _own(self, stored: manifest.Manifest) -> tuple[Settings, int]:
        """Return the settings of the second service, and its shuffle partitions."""
        buckets = manifest.buckets(self.settings, stored, 1)
        is_same = stored.settings.get("sessions.buckets") == buckets
        partitions = stored.shuffle_partitions if is_same else min(buckets, MOST_PARTITIONS)
        own = rebuilder.derived(
            self.settings, self.folders.beside, rate=self.options.rate, buckets=buckets, since=self.options.since
        )
        return own, partitions

    def _seed(self) -> None:
        """Give the new checkpoint what it cannot read from the topics: names of views, skips, and the values of columns."""
        wanted, log = self._versions(), view_versions.Log(self.beside)
        numbers = log.numbers()
        if not numbers:
            log.write(0, wanted)
        elif log.at(max(numbers)) != wanted:
            what = f"The views are not those that {self.folders.beside} was begun with"
            raise CheckpointError(what, remedy="Give it up with `tidemark rebuild --forget`, and begin again")
        for name in (skips.DOCUMENT.name, column_values.NAME):
            with suppress(FileNotFoundError):
                if name == skips.DOCUMENT.name or not (self.folders.beside / name).exists():
                    self.beside.replace(name, self.used.read(name))
        for folder in (REFERENCE, "schemas"):
            source, target = self.folders.used / folder, self.folders.beside / folder
            if source.exists() and not target.exists():
                shutil.copytree(source, self.folders.beside / f".{folder}", dirs_exist_ok=True)
                (self.folders.beside / f".{folder}").rename(target)

    def _versions(self) -> Versions:
        """Return the views of the settings under the names in keys that they have, or get, at the service; all complete."""
        log = view_versions.Log(self.used)
        numbers = log.numbers()
        served = log.at(max(numbers)) if numbers else view_versions.begun(self.settings, self._meta())
        after = view_versions.changed(served or Versions(), self.settings, -1)
        return replace(after, views=tuple(view.model_copy(update={"since": 0}) for view in after.views))

    def _meta(self) -> str:
        keys = shards(self.settings.redis)[0]
        with link.reader(self.settings.redis, keys, "the views that are published") as (client, budget):
            text: bytes | None = budget.attempt(lambda: client.get(keys.meta))
        return (text or b"").decode()

    # Steps 2 to 5, beside the second service, in a thread of their own

    def _follow(self) -> None:
        try:
            self._catch_up()
            if not self.runner.stopping.is_set():
                self._compare()
                failpoint.hit("rebuild_compared")
                if self.options.switch:
                    self._take_over()
        except BaseException as error:
            self._failure = error
        finally:
            self.runner.stop()

    def _catch_up(self) -> None:
        said_s = clock.monotonic_s()
        while not self.runner.stopping.is_set():
            asked_s, wanted = clock.monotonic_s(), rebuilder.published(self.settings)
            while not rebuilder.reaches(mine := rebuilder.published(self.own), wanted):
                if self.runner.stopping.is_set():
                    return
                if clock.monotonic_s() - said_s > SAY_S:
                    said_s = clock.monotonic_s()
                    left = _records(rebuilder.published(self.settings)) - _records(mine)
                    self.say(f"{counted(left, 'record')} behind the service")
                time.sleep(LOOK_S)
            # After an --undo the service reads again what the new checkpoint has.
            is_ahead = not rebuilder.reaches(rebuilder.published(self.settings), self._reached())
            if not is_ahead and clock.monotonic_s() - asked_s < NEAR_S:
                return

    def _compare(self) -> None:
        begin = MicroBatch(0, 0, 0, offset_log.first(self.beside), {})
        kafka, ahead_ms = self.settings.kafka, self.settings.admission.max_ahead_ms
        from_ms = beginnings.complete_from_ms(kafka, begin, ahead_ms)
        self.say(f"caught up with the service; the new checkpoint has {_since(from_ms)}")
        found = self._comparison = comparison.compare(self.settings, self.own, from_ms)
        self.folders.write(Record(Step.COMPARED, from_ms, dict(found.counts)))
        for line in [*found.lines(), *self._not_carried(from_ms, found)]:
            self.say(line)
        if not self.options.accept:
            self._require_alike(from_ms, found)

    def _require_alike(self, from_ms: int, found: Comparison) -> None:
        if found.differences:
            what = f"{counted(found.differences, 'closed value')} of {found.compared:,} differ"
            raise CheckpointError(
                what,
                remedy="Closed values keep what readers have seen. Switch nevertheless with --accept, or give up with --forget",
            )
        if any(begin_ms < from_ms for begin_ms in self._endless().values()):
            what = f"Views without windows would begin at {format_time(from_ms)}, and their counts would become smaller"
            raise CheckpointError(what, remedy="Read from an earlier time, or let readers see that with --accept")
        open_from_ms = self._watermark_ms() - _longest_ms(self.settings)
        if from_ms > max(open_from_ms, 0):
            what = (
                f"The new checkpoint has readings from {format_time(from_ms)} on, "
                f"and values may be open since {format_time(open_from_ms)}"
            )
            raise CheckpointError(
                what,
                remedy="Read from an earlier time, or wait until those are closed; or let them lack readings with --accept",
            )

    def _endless(self) -> dict[tuple[str, str], int]:
        """Return the event time (ms) from which each view and measure without windows has all readings at the service."""
        return beginnings.stored(self.used, self.settings.endless)

    def _not_carried(self, from_ms: int, found: Comparison) -> Iterator[str]:
        if from_ms:
            yield f"values that begin before {format_time(from_ms)} stay as they are, without later corrections from the state"
            if any(begin_ms < from_ms for begin_ms in self._endless().values()):
                yield f"views without windows will begin at {format_time(from_ms)}: their counts become smaller"
        if found.counts["corrected"]:
            yield f"{counted(found.counts['corrected'], 'corrected value')} will stay as corrected"

    def _take_over(self) -> None:
        """Step 4 and the beginning of 5."""
        self._require_views()
        self.say("stop the service now, and its standbys: the new checkpoint takes over when the lease is free")
        lease, holders = Lease(self.settings, owner.here()), set[str]()
        if lease.acquire(lambda other: holders.add(other.holder), self.runner.stopping) is None:
            return
        self._lease = lease
        _await_end(holders)
        failpoint.hit("rebuild_leased")
        self.say("the service is stopped: reading its last records")
        self._require_in_order()
        self.runner.gate.last = rebuilder.published(self.settings)
        while not self.runner.stopping.is_set() and not self._is_at_end():
            time.sleep(LOOK_S / 5)

    def _reached(self) -> Offsets:
        """Return the offsets up to which the new checkpoint has committed."""
        position = offset_log.position(self.beside)
        return {} if position is None else position.offsets

    def _is_at_end(self) -> bool:
        return self.runner.gate.last is not None and rebuilder.reaches(self._reached(), self.runner.gate.last)

    def _require_views(self) -> None:
        """Raise CheckpointError if the service has changed its views since the rebuild began."""
        log = view_versions.Log(self.beside)
        if self._versions() != log.at(max(log.numbers())):
            what = "The views of the service have changed since the rebuild began"
            raise CheckpointError(what, remedy="Give it up with --forget, and begin again")

    def _require_in_order(self) -> None:
        """Raise CheckpointError if the service has left something that only it can finish."""
        again = "Start the service, stop it in order, and repeat the command"
        reached = set(link.progress(self.settings.redis, "offsets"))
        if len(reached) > 1:
            what = "The service was killed when a part of the shards had its last batch"
            raise CheckpointError(what, remedy=again)
        self._require_views()
        if not rebuilder.reaches(rebuilder.published(self.settings), self._reached()):
            what = "The service has not published again what the new checkpoint has read"
            raise CheckpointError(what, remedy="Start the service, wait until it has caught up, and repeat the command")
        if self.settings.outlets:
            left = [name for name in self.used.names(outbox.FOLDER) if name[:1].isdigit()]
            if left:
                what = f"{self.folders.used}: finals in {counted(len(left), 'file')} are not in every outlet"
                raise CheckpointError(what, remedy=again)
            # A stop in order leaves a batch that is planned. One that was cut off may have its finals in an outlet.
            if any(link.progress(self.settings.redis, "writing")):
                what = "The service was cut off in a batch whose finals may be in an outlet"
                raise CheckpointError(what, remedy=again)

    # Step 6

    def _switch(self, lease: Lease) -> None:
        self._finish_event_time()
        # Corrections and backfills, which leave in the folder what outlets lack, end before it is copied.
        with closing(Fence(self.settings.redis)) as fence:
            self._carry()
            self.folders.settle(self.folders.used)
            is_read_again = self._comparison is None or self._comparison.differences > 0
            _mark(self.settings, lease.epoch, is_read_again=is_read_again)
            failpoint.hit("rebuild_marked")
            fence.check()
            offline.confirm(lease, "The checkpoint is as it was")
            self.folders.exchange()
        failpoint.hit("rebuild_switched")
        self.say(
            f"{self.folders.used} is the new checkpoint: start the service. {self.folders.beside} is the former one, "
            "for `tidemark rebuild --undo` until `tidemark rebuild --forget`"
        )

    def _finish_event_time(self) -> None:
        """Let the next batch begin at the service's watermark: values up to there are closed, and late readings rejected."""
        batch = commit_log.last(self.beside) or 0
        after, devices, limit = event_time.read(self.beside, batch)
        watermark_ms = self._watermark_ms()
        if after.watermark_ms > watermark_ms:
            what = f"The service was held by unread records when it stopped, at {format_time(watermark_ms)}"
            raise CheckpointError(what, remedy="Start it, wait until it has caught up, and repeat the command")
        if self.settings.outlets and after.watermark_ms < watermark_ms and not self.options.accept:
            closed = format_time(watermark_ms), format_time(after.watermark_ms)
            what = "The service has closed values up to {}, the new checkpoint up to {}".format(*closed)
            raise CheckpointError(
                what,
                remedy="Start the service and repeat the command; with --accept outlets get the values between twice",
            )
        whole = EventTime(watermark_ms, after.newest_ms)
        event_time.Log(self.beside).note(batch, whole, devices, limit)

    def _carry(self) -> None:
        """Give the new checkpoint what belongs to the prefix and the outlets, not to the batches."""
        before = None
        while (found := self._left()) != before:  # what was fenced off may still finish its last step
            before = found
            for name in (job_log.FOLDER, outbox.FOLDER):
                with suppress(FileNotFoundError):
                    shutil.rmtree(self.folders.beside / name)
                for each in self.used.names(name):
                    with suppress(FileNotFoundError):
                        self.beside.replace(f"{name}/{each}", self.used.read(f"{name}/{each}"))
        # Closed values stay as the service has counted them, with the snapshots of then.
        uses = history.read(SharedFolder(self.folders.used / REFERENCE)).uses
        for name in (*(f"{use.version}.arrow" for use in uses), history.DOCUMENT.name):
            with suppress(FileNotFoundError):
                self.beside.replace(f"{REFERENCE}/{name}", self.used.read(f"{REFERENCE}/{name}"))
        self.beside.remove(starts.DOCUMENT.name)
        manifest.set_format(self.beside, self._versions().format)

    def _left(self) -> list[tuple[str, int]]:
        """Return the files of backfills and for outlets, with the times of their contents."""
        places = [self.folders.used / name for name in (job_log.FOLDER, outbox.FOLDER)]
        found = []
        for path in (path for place in places for path in place.glob("[!.]*")):
            with suppress(FileNotFoundError):
                found.append((str(path), path.stat().st_mtime_ns))
        return sorted(found)

    def _watermark_ms(self) -> int:
        return min(int(text or 0) for text in link.progress(self.settings.redis, "watermark"))


def _records(offsets: Any) -> int:
    return sum(offset for partitions in offsets.values() for offset in partitions.values())


def _since(from_ms: int) -> str:
    return f"all readings from {format_time(from_ms)} on" if from_ms else "all readings"


def _longest_ms(settings: Settings) -> int:
    """The longest time for which a value may be open."""
    windows = [view.window_ms for view in settings.closing_views]
    return max([settings.sessions.max_duration_ms + longest_gap_ms(settings), *windows])


@contextmanager
def _stopped(settings: Settings, say: Say) -> Iterator[Lease]:
    """Hold the lease of the service, whose process has ended."""
    with offline.term(settings, say) as lease:
        yield lease


def _await_end(holders: Sequence[str] | set[str]) -> None:
    """Wait for the end of processes of this host that had the lease: one that was frozen would go on in the other folder."""
    deadline_s = clock.monotonic_s() + GONE_S
    while running := sorted(str(pid) for name in holders if (pid := owner.pid_of(name.rpartition(":")[0])) is not None):
        if clock.monotonic_s() > deadline_s:
            what = f"The lease is free, and the service's process {', '.join(running)} still runs"
            raise FencedError(what, remedy="End it, and repeat the command")
        time.sleep(LOOK_S)


def _mark(settings: Settings, epoch: int, *, is_read_again: bool) -> None:
    """Have the service write the values of its state again; with `is_read_again` as after a checkpoint that has other values."""
    sink = Sink(settings, MicroBatch(epoch, 0, 0, {}, {}))
    if is_read_again:
        final_ms = max(int(text or 0) for text in link.progress(settings.redis, "final"))
        sink.run("mark", mark=f"{clock.now_ms()} {final_ms} {epoch}", rebuild=True)
    else:
        sink.run("mark", mark=republish.mark(republish.ASKED))


def _require_no_keys(own: Settings) -> None:
    """Raise CheckpointError if there are keys under the prefix of a rebuild that has not begun."""
    found = next((name for *_, names in _keys(own) for name in names), None)
    if found is not None:
        what = f"Redis has keys under {own.redis.prefix}, such as {found.decode(errors='replace')}, and no rebuild has begun"
        raise CheckpointError(
            what,
            remedy="If another program has them, give the service another redis.prefix. "
            "If they are of a rebuild whose folder was removed by hand, delete them",
        )


def _remove_keys(own: Settings, kept: frozenset[str] = frozenset({"lease"})) -> int:
    """Remove every key of a prefix but the `kept` ones, by their names in Keys."""
    removed = 0
    for keys, client, budget, names in _keys(own):
        spared = {getattr(keys, name).encode() for name in kept}
        if names := [name for name in names if name not in spared]:
            removed += budget.attempt(partial(client.unlink, *names))
    return removed


def _keys(own: Settings) -> Iterator[tuple[Keys, Any, Budget, list[bytes]]]:
    """Yield the keys of a prefix, by pages; a key may occur twice."""
    for keys in shards(own.redis):
        with link.reader(own.redis, keys, "the keys of the rebuild") as (client, budget):
            cursor: int | None = None
            while cursor != 0:
                ask = partial(client.scan, cursor or 0, match=keys.matching("*"), count=own.redis.chunk)
                cursor, names = budget.attempt(ask)
                yield keys, client, budget, names
