"""`tidemark devices`: pages of devices in the order of their ids, from a real Redis."""

import json
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from load.servers.redis import Redis
from load.testbed import to_toml
from service.cli import main
from service.errors import SettingsError, SinkError, SinkRefusedError
from service.units import format_time
from tests import minimal

pytestmark = pytest.mark.integration

T0 = 1_790_000_000_000
Run = Callable[..., str]


class Fleet:
    """Devices that are written by hand, and the settings of the service that has them."""

    def __init__(self, redis: Redis, prefix: str, folder: Path) -> None:
        self.client = redis.client()
        self.prefix = prefix
        self.config = folder / "tidemark.toml"
        reference = {"url": "jdbc:sqlite:x.db", "query": "q", "columns": ["site", "model"]}
        self.document = minimal.document(reference=reference, redis={"url": redis.url, "prefix": prefix})
        self.write_settings()

    def write_settings(self) -> None:
        self.config.write_text(to_toml(self.document), encoding="utf-8")

    def add(self, name: str | bytes, status: str = "online", *, shard: int | None = None, **fields: str) -> None:
        key = (self.prefix if shard is None else f"{{{self.prefix}:{shard}}}") + ":device:"
        own = {"status": status, "last_seen": str(T0), "session": "", "reference": "abc", "temperature": "20.5"}
        attributes = {f"ref.{column}": fields.pop(column) for column in ("site", "model") if column in fields}
        encoded = name.encode() if isinstance(name, str) else name
        self.client.hset(key.encode() + encoded, mapping={**own, **attributes, **fields})


@pytest.fixture
def fleet(redis_server: Redis, prefix: str, tmp_path: Path) -> Fleet:
    made = Fleet(redis_server, prefix, tmp_path)
    for number in range(120):
        status = ("online", "quiet", "offline")[number % 3]
        made.add(f"pump-{number:03}", status, site="leeds" if number % 2 else "cork", model="PX")
    made.client.hset(f"{prefix}-2:device:stranger", "status", "online")
    made.client.hset(f"{prefix}:window:all:temperature:all:0", "count", "1")
    return made


@pytest.fixture
def run(fleet: Fleet, capsys: pytest.CaptureFixture[str]) -> Run:
    def of(*words: str, status: int = 0) -> str:
        assert main(["devices", "--config", str(fleet.config), *words]) == status
        printed = capsys.readouterr()
        return printed.err if status else printed.out

    return of


def test_a_page_has_devices_in_order_with_their_columns_and_names_the_next_page(run: Run) -> None:
    lines = run("-n", "3").splitlines()
    assert lines[0].split() == ["device", "status", "last", "seen", "site", "model"]
    assert lines[1].split() == ["pump-000", "online", "2026-09-21T14:13:20.000Z", "cork", "PX"]
    assert [line.split()[0] for line in lines[1:4]] == ["pump-000", "pump-001", "pump-002"]
    assert lines[4:] == ["3 of 120 devices", "more: --after pump-002"]
    assert run("-n", "2", "--after", "pump-117").splitlines()[-1] == "2 of 120 devices"
    assert len(run().splitlines()) == 53


def test_pages_after_one_another_have_each_device_once(run: Run) -> None:
    seen: list[str] = []
    while (page := json.loads(run("--json", "-n", "7", "--after", seen[-1] if seen else ""))) != []:
        seen += [each["device"] for each in page]
    assert seen == [f"pump-{number:03}" for number in range(120)]


def test_filters_are_by_status_by_any_reference_column_and_by_the_beginning_of_an_id(run: Run) -> None:
    def ids(*words: str) -> list[str]:
        return [each["device"] for each in json.loads(run("--json", *words))]

    assert ids("--status", "offline") == [f"pump-{number:03}" for number in range(2, 120, 3)]
    assert ids("--where", "site=leeds") == [f"pump-{number:03}" for number in range(1, 120, 2)]
    assert ids("--where", "site=leeds", "--where", "model=PX", "--status", "quiet", "-n", "2") == [
        "pump-001",
        "pump-007",
    ]
    assert ids("--where", "site=lee") == ids("--prefix", "ump") == []
    assert ids("--prefix", "pump-11") == [f"pump-{number}" for number in range(110, 120)]
    assert ids("--prefix", "pump-1", "--status", "quiet", "--after", "pump-115") == ["pump-118"]
    assert run("--where", "site=none").splitlines() == ["0 of 120 devices"]


def test_json_has_all_devices_with_all_that_the_list_shows(run: Run) -> None:
    devices = json.loads(run("--json"))
    assert len(devices) == 120
    assert devices[1] == {
        "device": "pump-001",
        "status": "quiet",
        "skewed": False,
        "last_seen": T0,
        "session": None,
        "attributes": {"site": "leeds", "model": "PX"},
    }


def test_odd_ids_are_listed_and_control_nothing(run: Run, fleet: Fleet) -> None:
    odd = ["*", "[a]", "a:device:b", "\x1b[31mred", "=1+1", " ", "日本"]
    for name in odd:
        fleet.add(name, site="\x1b[2J\n")
    fleet.add(b"\xff\xfe", skewed="1", last_seen="0")
    assert {each["device"] for each in json.loads(run("--json"))} >= {*odd, "\\xff\\xfe"}
    text = run("-n", "200")
    assert "\x1b" not in text
    assert "\\x1b[31mred" in text
    assert "\\x1b[2J\\n" in text
    assert "online, skewed" in next(line for line in text.splitlines() if line.startswith("\\xff"))
    assert "never" in text
    assert len(text.splitlines()) == 130
    for name in odd[:4]:
        assert [each["device"] for each in json.loads(run("--json", "--prefix", name))] == [name]


def test_an_expired_device_is_left_out_and_an_unknown_column_is_an_error(run: Run, fleet: Fleet) -> None:
    fleet.client.delete(f"{fleet.prefix}:device:pump-001")
    del fleet.document["reference"]["columns"]
    fleet.write_settings()
    assert [line.split()[0] for line in run("-n", "2").splitlines()[1:3]] == ["pump-000", "pump-002"]
    for words in (
        ("--where", "stie=1"),
        ("--where", "site=leeds", "--where", "stie="),
        ("--where", "stie=1", "--json"),
    ):
        message = run(*words, status=SettingsError.status)
        assert "--where stie: no device has the attribute 'stie'. They have model, site" in message
    assert run("--where", "site=none", "--after", "pump-119").splitlines() == ["0 of 119 devices"]
    fleet.add("early", "offline")
    assert run("--where", "site=", "--prefix", "pump").splitlines() == ["0 of 119 devices"]
    assert "They have none" in run("--where", "site=x", "--prefix", "early", status=SettingsError.status)


def test_a_prefix_that_no_id_has_is_no_fault_of_redis(run: Run, fleet: Fleet) -> None:
    assert run("--prefix", "plump").splitlines() == [
        "0 of 0 devices",
        "No id begins with 'plump'; without --prefix all devices are listed",
    ]
    assert "Set list_never = true in [reference]" in run("--status", "never", status=SettingsError.status)
    fleet.document["reference"]["list_never"] = True
    fleet.write_settings()
    assert run("--status", "never").splitlines() == [
        "0 of 0 devices",
        "The service lists no device of the reference that has never sent a reading",
    ]
    fleet.document["redis"]["prefix"] = "another"
    fleet.write_settings()
    assert run().splitlines()[1].startswith("Redis has no device here: see `tidemark status`")


def test_the_list_has_its_time_and_no_service(run: Run, fleet: Fleet, capsys: pytest.CaptureFixture[str]) -> None:
    updated_ms = time.time_ns() // 1_000_000 - 7_200_000
    fleet.client.hset(f"{fleet.prefix}:progress", mapping={"epoch": 3, "batch": 9, "updated": updated_ms})
    last = run("-n", "1").splitlines()[3]
    assert last == (
        f"as of the last batch, {format_time(updated_ms)} (2 h ago). No service runs now: statuses are those of that time"
    )
    assert main(["devices", "--config", str(fleet.config), "--json", "-n", "1"]) == 0
    printed = capsys.readouterr()
    assert json.loads(printed.out)[0]["status"] == "online"
    assert "No service runs now" in printed.err
    fleet.client.set(f"{fleet.prefix}:lease", "host 7 x", px=10_000)
    assert run("-n", "1").splitlines()[3] == f"as of the last batch, {format_time(updated_ms)} (2 h ago)"


def test_what_cannot_be_asked_is_named(run: Run, fleet: Fleet, capsys: pytest.CaptureFixture[str]) -> None:
    message = run("--where", "color=red", status=SettingsError.status)
    assert "[reference] columns has no 'color'; it has site, model" in message
    for words, named in (
        (("--where", "site"), "'site' is not COLUMN=VALUE"),
        (("--status", "away"), "'away' is not one of"),
        (("-n", "0"), "greater than or equal to 1"),
        (("--skewed", "--prefix", "x"), "--skewed lists all of them"),
    ):
        with pytest.raises(SystemExit) as caught:
            main(["devices", "--config", str(fleet.config), *words])
        assert caught.value.code == 2
        error = " ".join(capsys.readouterr().err.replace("│", " ").split())
        assert named in error
    del fleet.document["reference"]
    fleet.write_settings()
    assert "there is no [reference] in the settings" in run("--where", "site=x", status=SettingsError.status)
    fleet.client.acl_setuser("reader", enabled=True, nopass=True, keys=["*"], commands=["+@all", "-scan"])
    url, fleet.document["redis"]["url"] = fleet.document["redis"]["url"], "redis://127.0.0.1:1"
    fleet.write_settings()
    assert "Redis at 127.0.0.1:1/0 does not answer" in run(status=SinkError.status)
    fleet.document["redis"]["url"] = url.replace("://", "://reader:x@")
    fleet.write_settings()
    message = run(status=SinkRefusedError.status)
    assert "NOPERM" in message
    assert "Check redis.url's user, redis.password_file and Redis's ACL" in message
    fleet.client.acl_deluser("reader")


def test_shards_on_one_redis_are_walked_over_once(run: Run, fleet: Fleet) -> None:
    fleet.document["redis"]["shards"] = 3
    fleet.write_settings()
    for number in range(60):
        fleet.add(f"p{number:02}", shard=number % 3)
    fleet.client.hset(f"{{{fleet.prefix}:9}}:device:stranger", "status", "online")
    devices = json.loads(run("--json"))
    assert [each["device"] for each in devices] == [f"p{number:02}" for number in range(60)]
    fleet.client.config_resetstat()
    run("-n", "1")
    scans = fleet.client.info("commandstats")["cmdstat_scan"]["calls"]
    assert scans <= 1 + fleet.client.dbsize() // 5_000


def test_a_page_reads_few_hashes_of_a_large_fleet(run: Run, fleet: Fleet) -> None:
    with fleet.client.pipeline(transaction=False) as pipe:
        for number in range(20_000):
            pipe.hset(f"{fleet.prefix}:device:v{number:05}", mapping={"status": "online", "last_seen": "1"})
        pipe.execute()
    fleet.client.config_resetstat()
    assert "20,120 devices" in run("-n", "50", "--after", "v10000")
    calls = fleet.client.info("commandstats")
    assert calls["cmdstat_hgetall"]["calls"] == 51
    assert "cmdstat_keys" not in calls
