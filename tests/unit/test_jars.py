"""The jars: what the lock names, what a folder lacks, and how they are fetched without Maven."""

import hashlib
import re
from collections.abc import Iterator
from pathlib import Path
from xml.etree import ElementTree

import pytest

from load.servers.web_server import Handler, answering
from service.cli import main
from service.errors import SetupError
from service.spark import jars, repository
from service.spark.jars import FLINK, FORMER_BROKER, GROUPS, KAFKA_STREAMS, MORE_GROUPS, PROFILER, Jar
from service.spark.places import DEPLOY

ONE, TWO = b"the first jar", b"the second jar"


def jar(name: str, content: bytes) -> Jar:
    return Jar("spark", f"org.example.{name}:{name}:1.0", hashlib.sha256(content).hexdigest())


LOCKED = [jar("one", ONE), jar("two", TWO)]
FETCHED = {"one-1.0.jar": ONE, "two-1.0.jar": TWO}


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A user without a Maven repository, and a lock of two jars."""
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    monkeypatch.delenv(repository.VARIABLE, raising=False)
    monkeypatch.setattr(jars, "locked", lambda _group: LOCKED)
    return tmp_path / "home"


class Maven:
    """A Maven repository on loopback. `files` are by path, `failures` are answers 503, and `cuts` answers that break
    off, before the first good one."""

    def __init__(self) -> None:
        self.files = {f"/maven/{each.path}": content for each, content in zip(LOCKED, (ONE, TWO), strict=True)}
        self.failures = 0
        self.cuts = 0
        self.logins: list[str | None] = []
        self.url = ""

    def answer(self, request: Handler) -> None:
        self.logins.append(request.headers["Authorization"])
        content = self.files.get(request.path)
        status = 404 if content is None else 200
        if self.failures:
            self.failures -= 1
            status = 503
        request.send_response(status)
        request.send_header("Content-Length", str(len(content or b"")))
        request.end_headers()
        if self.cuts and content is not None:
            self.cuts -= 1
            content = content[:-4]
        request.wfile.write(content or b"")


@pytest.fixture
def maven() -> Iterator[Maven]:
    made = Maven()
    with answering(made.answer) as address:
        made.url = f"{address}/maven"
        yield made


def contents(folder: Path) -> dict[str, bytes]:
    return {each.name: each.read_bytes() for each in (folder / "spark").iterdir()}


def test_jars_come_from_a_repository_once(maven: Maven, tmp_path: Path) -> None:
    first = repository.fetch("spark", tmp_path, repository=maven.url + "/")
    assert contents(tmp_path) == FETCHED
    assert (first.jars, first.before) == (2, 0)
    asked = len(maven.logins)
    assert repository.fetch("spark", tmp_path, repository=maven.url).before == 2
    assert len(maven.logins) == asked == 2


def test_a_jar_that_was_damaged_is_fetched_again(maven: Maven, tmp_path: Path) -> None:
    repository.fetch("spark", tmp_path, repository=maven.url)
    (tmp_path / "spark" / "two-1.0.jar").write_bytes(TWO[:-1])
    assert repository.fetch("spark", tmp_path, repository=maven.url).before == 1
    assert contents(tmp_path)["two-1.0.jar"] == TWO


def test_a_file_of_another_checksum_is_refused(maven: Maven, tmp_path: Path) -> None:
    maven.files[f"/maven/{LOCKED[1].path}"] = b"something else"
    other = hashlib.sha256(b"something else").hexdigest()
    with pytest.raises(SetupError, match=rf"two-1.0.jar: the file has the SHA-256 {other}.*{LOCKED[1].sha256}.*mirror"):
        repository.fetch("spark", tmp_path, repository=maven.url)
    assert set(contents(tmp_path)) <= {"one-1.0.jar"}


def test_a_missing_file_is_named_with_its_checksum_and_the_remedy(maven: Maven, tmp_path: Path) -> None:
    del maven.files[f"/maven/{LOCKED[0].path}"]
    with pytest.raises(SetupError, match=rf"one-1.0.jar cannot be fetched: 404.*{LOCKED[0].sha256}.*--offline"):
        repository.fetch("spark", tmp_path, repository=maven.url)
    assert maven.logins.count(None) <= 2  # an answer that will not change is not asked for again


@pytest.mark.parametrize("trouble", ["failures", "cuts"])
def test_a_repository_that_fails_or_breaks_off_twice_is_asked_again(maven: Maven, tmp_path: Path, trouble: str) -> None:
    setattr(maven, trouble, 2)
    repository.fetch("spark", tmp_path, repository=maven.url)
    assert contents(tmp_path) == FETCHED


def test_a_download_that_breaks_off_each_time_is_named_with_what_came(maven: Maven, tmp_path: Path) -> None:
    maven.cuts = 1_000
    with pytest.raises(
        SetupError, match=r"cannot be fetched: the connection broke off after \d+ of \d+ bytes\. Wanted"
    ):
        repository.fetch("spark", tmp_path, repository=maven.url)
    assert contents(tmp_path) == {}


def test_a_login_in_the_address_is_sent_and_never_printed(maven: Maven, tmp_path: Path) -> None:
    address = maven.url.replace("127.0.0.1", "user:pass%20word@127.0.0.1")
    del maven.files[f"/maven/{LOCKED[0].path}"]
    with pytest.raises(SetupError) as refused:
        repository.fetch("spark", tmp_path, repository=address)
    assert set(maven.logins) == {"Basic dXNlcjpwYXNzIHdvcmQ="}
    assert "pass" not in str(refused.value).replace("pass%20word", "pass")


def test_only_a_right_file_of_maven_s_own_repository_is_used(maven: Maven, home: Path, tmp_path: Path) -> None:
    for each, content in zip(LOCKED, (ONE, b"damaged"), strict=True):
        file = home / ".m2" / "repository" / each.path
        file.parent.mkdir(parents=True)
        file.write_bytes(content)
    repository.fetch("spark", tmp_path, repository=maven.url)
    assert contents(tmp_path) == FETCHED
    assert len(maven.logins) == 1


@pytest.mark.parametrize("place", ["spark/{name}", "{name}", "{path}"])
def test_an_offline_folder_may_be_flat_grouped_or_of_maven(place: str, maven: Maven, tmp_path: Path) -> None:
    for each, content in zip(LOCKED, (ONE, TWO), strict=True):
        file = tmp_path / "usb" / place.format(name=each.name, path=each.path)
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_bytes(content)
    repository.fetch("spark", tmp_path / "to", offline=tmp_path / "usb", repository=maven.url)
    assert contents(tmp_path / "to") == FETCHED
    assert maven.logins == []


def test_a_folder_that_lacks_a_jar_is_never_completed_from_the_network(maven: Maven, tmp_path: Path) -> None:
    (tmp_path / "usb").mkdir()
    with pytest.raises(SetupError, match=rf"usb lacks .*SHA-256.*tidemark jars --to {tmp_path}/usb"):
        repository.fetch("spark", tmp_path / "to", offline=tmp_path / "usb", repository=maven.url)
    assert maven.logins == []


def test_a_folder_that_cannot_be_written_is_an_error_with_a_remedy(maven: Maven, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(SetupError, match=r"cannot be stored in .*Set TIDEMARK_JARS"):
        repository.fetch("spark", tmp_path / "file", repository=maven.url)


MIRROR = """<settings xmlns="http://maven.apache.org/SETTINGS/1.2.0"><mirrors>
<mirror><id>a</id><url>http://a.example/</url><mirrorOf>{}</mirrorOf></mirror></mirrors></settings>"""
NO_XML = "<settings>"


@pytest.mark.parametrize(
    ("text", "used"),
    [
        *((MIRROR.format(of), "http://a.example/") for of in ("central", "*", "external:*")),
        *((MIRROR.format(of), repository.CENTRAL) for of in ("other", "*,!central")),
        (NO_XML, repository.CENTRAL),
    ],
)
def test_a_mirror_of_central_in_maven_s_settings_is_used(text: str, used: str, home: Path) -> None:
    (home / ".m2").mkdir(parents=True)
    (home / ".m2" / "settings.xml").write_text(text)
    assert repository.configured() == used


def test_the_command_fetches_into_the_folder_that_tidemark_jars_names(
    maven: Maven, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("TIDEMARK_JARS", str(tmp_path / "jars"))
    with pytest.raises(SetupError, match=r"there are no jars.*Run `tidemark jars`"):
        jars.complete()
    assert main(["jars", "--repository", maven.url]) == 0
    assert capsys.readouterr().out == f"{tmp_path}/jars/spark: 2 jars, 2 of them new\n"
    assert [each.name for each in jars.complete()] == ["one-1.0.jar", "two-1.0.jar"]
    for address in ("ftp://a.example", "ci:s3cret@a.example/maven", "a.example/maven?token=s3cret"):
        assert main(["jars", "--repository", address]) == SetupError.status
        refusal = capsys.readouterr().err
        assert re.search(r"a\.example.* has no scheme of http", refusal)
        assert "s3cret" not in refusal


def test_another_version_may_be_there_and_none_may_be_missing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TIDEMARK_JARS", str(tmp_path))
    (tmp_path / "spark").mkdir()
    for name in ("one-1.1.jar", "driver-of-another-database-2.0.jar"):
        (tmp_path / "spark" / name).write_bytes(b"")
    with pytest.raises(SetupError, match=r"spark lacks two-1\.0\.jar\. Run"):
        jars.complete()
    (tmp_path / "spark" / "two-1.0.jar").write_bytes(b"")
    assert len(jars.complete()) == 3


def test_fetching_removes_other_versions_of_its_jars_and_no_other_jars(
    maven: Maven, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("TIDEMARK_JARS", str(tmp_path))
    kept = ["one-1.0-tests.jar", "one-and-a-half-0.9.jar", "driver-of-another-database-2.0.jar", "one-0.9.jar.txt"]
    (tmp_path / "spark").mkdir()
    for name in ("one-0.9.jar", "two-1.5.6-10.jar", *kept):
        (tmp_path / "spark" / name).write_bytes(b"")
    maven.failures = 1_000
    with pytest.raises(SetupError):
        repository.fetch("spark", tmp_path, repository=maven.url)
    assert (tmp_path / "spark" / "one-0.9.jar").exists(), "a service may run with it until the new ones are there"
    maven.failures = 0
    assert main(["jars", "--repository", maven.url]) == 0
    assert sorted(contents(tmp_path)) == sorted(["one-1.0.jar", "two-1.0.jar", *kept])
    lines = capsys.readouterr().out.splitlines()
    assert [line.partition(":")[0] for line in lines[1:]] == ["removed one-0.9.jar", "removed two-1.5.6-10.jar"]
    class_path = [Path(each).name for each in jars.class_path().split(":")]
    assert "one-0.9.jar" not in class_path


def test_another_pyspark_or_module_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TIDEMARK_JARS", str(tmp_path))
    connector = Jar("spark", "org.apache.spark:spark-sql-kafka-0-10_2.13:4.1.3", "")
    monkeypatch.setattr(jars, "locked", lambda _group: [connector])
    (tmp_path / "spark").mkdir()
    (tmp_path / "spark" / "spark-sql-kafka-0-10_2.13-4.1.3.jar").write_bytes(b"")
    assert "spark-sql-kafka-0-10_2.13-4.1.3.jar" in jars.class_path()
    (tmp_path / "spark" / "spark-sql-kafka-0-10_2.13-4.2.0.jar").write_bytes(b"")
    with pytest.raises(
        SetupError, match=r"-4\.2\.0\.jar is a module of another Spark: PySpark .* -?.*4\.1\.3\.jar.*tidemark jars"
    ):
        jars.class_path()
    monkeypatch.setattr(jars, "PYSPARK", "4.1.1")
    with pytest.raises(SetupError, match=r"PySpark 4\.1\.4 is installed.*tested with 4\.1\.1 only.*pyspark==4\.1\.1"):
        jars.class_path()


def test_every_pin_of_pyspark_is_the_tested_version() -> None:
    root = DEPLOY.parent
    pins = {
        "pyproject.toml": f'"pyspark=={jars.PYSPARK}"',
        "requirements.lock": f"pyspark=={jars.PYSPARK} ",
        "deploy/container/requirements.lock": f"pyspark=={jars.PYSPARK} ",
        "deploy/kubernetes/components/executors/spark-application.yaml": f"sparkVersion: {jars.PYSPARK}\n",
        "docs/operator/install.md": f"| 3.11 | 17 | {jars.PYSPARK} | 6.2 | all tests |",
    }
    assert [file for file, pin in pins.items() if pin not in (root / file).read_text(encoding="utf-8")] == []


def test_the_lock_has_each_group_and_every_artifact_of_the_pom() -> None:
    lines = [line.split() for line in (DEPLOY / "jars.lock").read_text().splitlines() if not line.startswith("#")]
    assert {line[0] for line in lines} == {*GROUPS, *MORE_GROUPS, FORMER_BROKER, PROFILER, FLINK, KAFKA_STREAMS}
    assert all(len(line) == 3 and line[1].count(":") == 2 and len(line[2]) == 64 for line in lines)
    locked = {tuple(line[1].split(":")[:2]) for line in lines}
    pom = ElementTree.parse(DEPLOY / "pom.xml")  # noqa: S314 - a file of this tree
    wanted = {
        (each.findtext("{*}groupId"), (each.findtext("{*}artifactId") or "").replace("${scala.binary}", "2.13"))
        for each in pom.iterfind(".//{*}dependency")
    }
    assert wanted <= locked
