"""`tidemark views`: what becomes of the text of a settings file, whom the command tells, and when a service has the views."""

import errno
import os
import signal
import threading
import tomllib
from collections.abc import Callable
from contextlib import nullcontext
from pathlib import Path
from typing import Any, cast

import pytest
from pyspark.sql import SparkSession

from service import clock
from service.checkpoint.view_versions import Log, begun
from service.cli import main
from service.commands import views
from service.daemon import owner, runner, starts
from service.daemon.application import Application
from service.daemon.lease import Lease
from service.daemon.runner import Runner
from service.daemon.view_changes import ViewChanges
from service.errors import CheckpointError, SettingsError
from service.monitoring import status
from service.monitoring.metrics import Metrics
from service.monitoring.monitor import Monitor
from service.settings import Settings, load, parse
from service.spark.files import Local
from service.spark.internals.offset_log import Position

TEXT = """# The service of the plant.
[service]
checkpoint = "/nowhere"          # on the fast disk
[kafka]
bootstrap = "nowhere:1"
topics = ["readings"]
[input]
format = "json"
measures = {temperature = "temperature"}

# Each device.
[[views]]
name = "device"
by = [
  "device",   # alone
]
window = "1 m"

# All of them.
[[views]]  # slow
name = "total"
window = "10 m"

# The store.
[redis]
url = "redis://nowhere:1"
"""
SITE = '[[views]]\nname = "five"  # a new one\nwindow = "5 m"\n'


@pytest.fixture
def config(tmp_path: Path) -> Path:
    path = tmp_path / "tidemark.toml"
    path.write_text(TEXT)
    return path


def names(text: str) -> list[tuple[str, str]]:
    return [(view["name"], view["window"]) for view in tomllib.loads(text)["views"]]


def test_a_view_is_added_at_the_end_and_nothing_else_changes(config: Path) -> None:
    after = views.add(config, f"\n{SITE}\n")
    assert after == f"{TEXT}\n{SITE}"
    assert names(after) == [("device", "1 m"), ("total", "10 m"), ("five", "5 m")]


def test_a_view_is_changed_in_its_place_with_the_comments_around_it(config: Path) -> None:
    after = views.change(config, '# ignored\n[[views]]\nname = "device"\nby = ["device"]\nwindow = "2 m"\n')
    assert names(after) == [("device", "2 m"), ("total", "10 m")]
    assert '# Each device.\n[[views]]\nname = "device"\nby = ["device"]\nwindow = "2 m"\n\n# All of them.\n' in after
    assert after.startswith(TEXT[: TEXT.index("# Each device.")])
    assert after.endswith(TEXT[TEXT.index("# All of them.") :])


def test_a_view_is_removed_and_the_next_section_keeps_its_comment(config: Path) -> None:
    after = views.remove(config, "total")
    assert names(after) == [("device", "1 m")]
    assert "# The store.\n[redis]" in after
    config.write_text(after)
    with pytest.raises(SettingsError, match="is the only view"):
        views.remove(config, "device")


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda path: views.add(path, SITE.replace("five", "total")), "there is a view 'total'"),
        (lambda path: views.add(path, SITE.replace('"5 m"', '"5 parsecs"')), r"views\.2\.window"),
        (lambda path: views.add(path, SITE + '[redis]\nurl = "redis://other:1"\n'), "and nothing else"),
        (lambda path: views.add(path, "views = 3"), "and nothing else"),
        (lambda path: views.add(path, "[[views]\n"), "FILE: is not TOML"),
        (lambda path: views.change(path, SITE), "there is no view 'five'; there are device, total"),
        (lambda path: views.remove(path, "five"), "there is no view 'five'"),
    ],
)
def test_what_cannot_be_is_refused_by_name_and_the_file_stays(config: Path, change: Any, message: str) -> None:
    with pytest.raises(SettingsError, match=message):
        change(config)
    assert config.read_text() == TEXT


def test_views_of_the_file_that_have_no_names_are_refused(config: Path) -> None:
    for text in (TEXT.replace('name = "total"\n', ""), TEXT.replace('name = "total"', "name = 3"), "views = 3"):
        config.write_text(text)
        for change in (lambda: views.add(config, SITE), lambda: views.remove(config, "device")):
            with pytest.raises(SettingsError, match="not each of its views is a table with a name"):
                change()


def test_views_of_another_form_are_left_to_an_editor(config: Path) -> None:
    two = '{name = "device", by = ["device"], window = "1 m"}, {name = "total", window = "1 m"}'
    inline = f"views = [{two}]\n" + TEXT[: TEXT.index("# Each device.")]
    config.write_text(inline + TEXT[TEXT.index("[redis]") :])
    with pytest.raises(SettingsError, match=r"not all tables that begin with \[\[views\]\]"):
        views.remove(config, "device")
    with pytest.raises(SettingsError, match="the place of the view in its text is not found"):
        views.add(config, SITE)


def test_a_dry_run_prints_the_file_and_writes_nothing(config: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["views", "remove", "total", "--config", str(config), "--dry-run"]) == 0
    assert names(capsys.readouterr().out) == [("device", "1 m")]
    assert config.read_text() == TEXT


def test_a_file_keeps_its_mode_and_a_link_to_it_stays_a_link(config: Path) -> None:
    config.chmod(0o640)
    link = config.with_name("link.toml")
    link.symlink_to(config.name)
    views.write(link, TEXT + "\n")
    assert link.is_symlink()
    assert config.read_text() == TEXT + "\n"
    assert config.stat().st_mode & 0o777 == 0o640
    assert {path.name for path in config.parent.iterdir()} == {config.name, link.name}


@pytest.mark.skipif(os.geteuid() != 0, reason="only root gives files away")
def test_a_file_keeps_its_owner(config: Path) -> None:
    os.chown(config, 1234, 1235)
    views.write(config, TEXT + "\n")
    assert (config.stat().st_uid, config.stat().st_gid) == (1234, 1235)


def test_two_commands_at_once_write_files_of_their_own(config: Path) -> None:
    def written(_: object, mode: int) -> None:
        assert [each.name for each in config.parent.glob(".*.new")] == [f".{config.name}.{os.getpid()}.new"]
        assert mode

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Path, "chmod", written)
        views.write(config, TEXT + "\n")
    assert not list(config.parent.glob(".*.new"))


def test_a_file_that_cannot_be_replaced_leaves_no_other(config: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object) -> None:
        raise PermissionError(1, "Operation not permitted")

    monkeypatch.setattr(os, "chown", refuse)
    with pytest.raises(SettingsError, match="cannot be replaced"):
        views.write(config, TEXT + "\n")
    assert config.read_text() == TEXT
    assert [path.name for path in config.parent.iterdir()] == [config.name]


def test_a_signal_is_for_a_process_of_this_system_only() -> None:
    here = owner.here()
    assert owner.pid_of(here) == os.getpid()
    host, pid, start, machine = here.split(":")
    assert owner.pid_of(f"{host}:{pid}:{start}:0{machine[1:]}x") is None
    assert owner.pid_of(f"{host}:{pid}:{int(start) + 1}:{machine}") is None, "the pid is another process's by now"
    assert owner.pid_of("elsewhere") is None


@pytest.mark.parametrize(
    "change",
    [
        {"update_every": "30 s"},
        {"final_after": "1 s"},
        {"statistics": ["integral", "p95"], "per": "h"},
        {"statistics": ["integral", "p95"], "carry_for": "2 m"},
        {"statistics": ["integral", "p95"], "carry_for": "2 m", "fill": "last"},
        {"statistics": ["integral", "p95"], "sketches": True},
        {"statistics": ["increase"], "wraps_at": 65_536},
        {"window": "2 m"},
        {"slide": "30 s"},
        {"by": []},
        {"where": "temperature > 0"},
        {"measures": []},
        {"statistics": ["count", "p95"]},
        {"retain": "2 d"},
    ],
)
def test_a_service_has_the_views_when_all_settings_are_theirs(tmp_path: Path, change: dict[str, Any]) -> None:
    document = tomllib.loads(TEXT) | {"service": {"checkpoint": str(tmp_path / "checkpoint")}}
    first, *others = document["views"]
    *names, last = change
    base = {**first, **{name: change[name] for name in names}}
    before, after = (parse({**document, "views": [view, *others]}) for view in (base, {**first, **change}))
    for settings, wanted in ((before, after), (after, before)):
        assert views.are_taken(settings, _answer(settings, tmp_path / f"{last}-{wanted is after}"))
        assert not views.are_taken(wanted, _answer(settings, tmp_path / f"{last}-{wanted is after}"))


def _answer(settings: Settings, checkpoint: Path) -> list[dict[str, Any]]:
    settings = settings.model_copy(
        update={"service": settings.service.model_copy(update={"checkpoint": str(checkpoint)})}
    )
    Log(Local(checkpoint)).write(0, begun(settings))
    service = ViewChanges(cast(SparkSession, None), settings, Metrics(), lambda _: None)
    service.open(None, settings)
    answer: list[dict[str, Any]] = service.document()["list"]
    return answer


def test_a_checkpoint_whose_batches_have_no_views_is_refused(tmp_path: Path) -> None:
    """0.2.0 has written it: each later version writes views before the first batch."""
    settings = parse(tomllib.loads(TEXT) | {"service": {"checkpoint": str(tmp_path)}})
    changes = ViewChanges(cast(SparkSession, None), settings, Metrics(), lambda _: None)
    with pytest.raises(
        CheckpointError, match=r"has batches, and no file in views.*0\.2\.0\. Start 0\.4\.0 or 0\.5\.0 on it first"
    ):
        changes.open(Position(7, {}), settings)
    assert not (tmp_path / "views").exists()


def test_a_service_has_no_view_that_is_put_together_of_another_one_until_it_has_taken_that(tmp_path: Path) -> None:
    document = tomllib.loads(TEXT)
    minute = {"name": "minute", "window": "1 m", "measures": ["temperature"]}
    plain = {**minute, "name": "hour", "window": "1 h"}
    before, after = (parse({**document, "views": [minute, each]}) for each in (plain, {**plain, "from": "minute"}))
    for settings, wanted in ((before, after), (after, before)):
        answer = _answer(settings, tmp_path / str(wanted is after))
        assert (views.are_taken(settings, answer), views.are_taken(wanted, answer)) == (True, False)


def refused(text: str) -> dict[str, Any]:
    """The views of a service that refuses the file, now."""
    return {"list": [], "refused": {"text": text, "at_ms": clock.now_ms() + 60_000}}


def test_a_service_that_starts_is_asked_until_it_has_views(config: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It answers before Spark runs, and reads the file after that."""
    starting = {"state": "starting", "views": None}
    answers = iter([starting, starting, {"state": "running", "views": refused("no such column")}])
    monkeypatch.setattr(status, "ask", lambda *_: next(answers))
    monkeypatch.setattr(views, "_POLL_S", 0.0)
    said: list[object] = []
    with pytest.raises(SettingsError, match="the service refuses the file: no such column"):
        views._wait(load(config), clock.now_ms(), os.getpid(), said.append, "")
    assert not said
    monkeypatch.setattr(status, "ask", lambda *_: None)
    assert views._wait(load(config), clock.now_ms(), os.getpid(), said.append, "") == 0
    assert "it answers no questions" in str(said)


def test_a_service_that_has_not_taken_the_views_is_named(config: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(status, "ask", lambda *_: {"state": "restarting", "views": None})
    monkeypatch.setattr(views, "_POLL_S", 0.01)
    monkeypatch.setattr(views, "PATIENCE_S", 0.05)
    said: list[object] = []
    assert views._wait(load(config), clock.now_ms(), 17, said.append, "") == 1
    line = str(said[0])
    assert line.startswith("process 17 has not taken the views within 0 s; its state is restarting. The file has them")
    assert "`tidemark status`" in line


class Redis:
    """A store whose lease this process has, or another holder."""

    def __init__(self, holder: str = "") -> None:
        self.holder = holder or f"{owner.here()}:token"

    def get(self, _: str) -> bytes:
        return self.holder.encode()

    def attempt(self, action: Callable[[], bytes]) -> bytes:
        return action()


def test_a_holder_elsewhere_is_named_whatever_it_is_called(config: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    said: list[object] = []
    for holder in ("host-7:4711:1:abc:token", "somebody"):
        monkeypatch.setattr(views, "reader", lambda *_, holder=holder: nullcontext((Redis(holder), Redis(holder))))
        assert views.tell(load(config), said.append) == 1
    assert [str(each).partition(":")[0] for each in said] == [
        "the service is process 4711 at host-7",
        "the service is process  at somebody",
    ]


def test_a_service_of_another_user_gets_no_signal_and_that_is_said(
    config: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def kill(_: int, number: int) -> None:
        if number:
            raise PermissionError(errno.EPERM, os.strerror(errno.EPERM))

    said: list[object] = []
    monkeypatch.setattr(views, "reader", lambda *_: nullcontext((Redis(), Redis())))
    monkeypatch.setattr(os, "kill", kill)
    assert views.tell(load(config), said.append) == 1
    assert "cannot be sent SIGHUP (Operation not permitted). The file has the views" in str(said)


def test_several_pipelines_are_asked_for_the_one_of_the_file(config: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    asked, signals = [], []

    def ask(_: Any, name: str) -> dict[str, Any]:
        asked.append(name)
        return {"state": "running", "views": refused("no such column")}

    monkeypatch.setattr(views, "reader", lambda *_: nullcontext((Redis(), Redis())))
    monkeypatch.setattr(os, "kill", lambda *sent: signals.append(sent))
    monkeypatch.setattr(status, "ask", ask)
    with pytest.raises(SettingsError, match="no such column"):
        views.tell(load(config), print, "plant")
    assert asked == ["plant"]
    assert signals[-1] == (os.getpid(), signal.SIGHUP)


class Service:
    """A checkpoint, and the settings of a service before and after a view is added to their file."""

    def __init__(self, folder: Path) -> None:
        (folder / "checkpoint" / "event_time").mkdir(parents=True)
        document = tomllib.loads(TEXT) | {"service": {"checkpoint": str(folder / "checkpoint")}}
        self.before = parse(document)
        self.after = parse({**document, "views": [*document["views"], {"name": "five", "window": "5 m"}]})
        self.other = self.after.model_copy(update={"kafka": self.after.kafka.model_copy(update={"group": "other"})})
        self.log = Log(Local(folder / "checkpoint"))
        self.log.write(0, begun(self.before))

    def views(self) -> list[str]:
        """The views of the next batch."""
        versions = self.log.at(0)
        assert versions is not None
        return [view.name for view in versions.views]

    def changes(self, load: Callable[[], Settings], check: Callable[[Settings], None] = lambda _: None) -> ViewChanges:
        """Of a process that was started before the view was added."""
        return ViewChanges(cast(SparkSession, None), self.before, Metrics(), check, load)


@pytest.fixture
def service(tmp_path: Path) -> Service:
    return Service(tmp_path)


def refuse(*_: object) -> Settings:
    raise SettingsError("views: no query can have them")


@pytest.fixture
def term(service: Service, monkeypatch: pytest.MonkeyPatch) -> Callable[..., None]:
    """Run the terms of a process, without Spark and Redis: each opens the views. `meanwhile` happens while Spark starts."""
    monkeypatch.setattr(starts, "unreadable", lambda _: 0)
    monkeypatch.setattr(Lease, "release", lambda _: True)
    monkeypatch.setattr(Runner, "_begin_term", lambda _: 1)

    class Parts:
        def __init__(self, *arguments: Any) -> None:
            self.views, self.has_new_topics = service.changes(arguments[-1]), threading.Event()

        def close(self) -> None: ...

    monkeypatch.setattr(runner, "SessionParts", Parts)

    def run(load: Callable[[], Settings], meanwhile: Callable[[Runner], object], terms: int = 1) -> None:
        class Spark:
            def open(self, _: Settings) -> tuple[None, None]:
                meanwhile(made)
                return None, None

            def require_room(self) -> None: ...

        def serve(_: Runner, parts: Parts, epoch: int) -> int | None:
            parts.views.open(None, service.before)
            return epoch + 1 if epoch < terms else None

        monkeypatch.setattr(Runner, "_serve_term", serve)
        made = Runner(service.before, cast(Application, Spark()), Monitor.of(service.before), load)
        made.run()

    return run


def test_a_standby_that_takes_over_leaves_the_views_of_before(service: Service, term: Callable[..., None]) -> None:
    service.log.write(0, begun(service.after))
    term(lambda: service.after, lambda _: None)
    assert service.views() == ["device", "total", "five"]


def test_a_signal_while_spark_starts_is_not_lost(service: Service, term: Callable[..., None]) -> None:
    file = [service.before]

    def meanwhile(made: Runner) -> None:
        file.append(service.after)
        made.read_views()

    term(lambda: file[-1], meanwhile)
    assert service.views() == ["device", "total", "five"]


def test_every_term_begins_with_the_views_of_the_file(service: Service, term: Callable[..., None]) -> None:
    file = [service.after, service.before]
    term(file.pop, lambda _: None, terms=2)
    assert service.views() == ["device", "total", "five"]


@pytest.mark.parametrize("reason", ["unreadable", "other sections", "no plan"])
def test_a_file_that_is_refused_leaves_the_views_of_the_checkpoint(service: Service, reason: str) -> None:
    file = {"unreadable": refuse, "other sections": lambda: service.other, "no plan": lambda: service.after}[reason]
    taken = begun(parse({**tomllib.loads(TEXT), "views": [{"name": "one", "window": "1 m"}]}))
    service.log.write(0, taken)
    changes = service.changes(file, cast(Any, refuse))
    changes.ask()
    assert changes.open(None, service.before).views == taken.views
    assert service.views() == ["one"]
    refused = changes.document()["refused"]
    assert ("[kafka] changed" if reason == "other sections" else "no query can have them") in refused["text"]
    changes.filled({})
    assert not changes.is_due, "not later either"
    assert changes.open(None, service.before).views == taken.views


def test_a_start_with_known_views_checks_nothing_twice(service: Service, caplog: pytest.LogCaptureFixture) -> None:
    changes = service.changes(lambda: service.before, cast(Any, refuse))
    changes.ask()
    changes.open(None, service.before)
    assert service.views() == ["device", "total"]
    assert changes.document()["refused"] is None
    assert not caplog.records
