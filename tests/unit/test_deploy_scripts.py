"""The scripts in deploy/ that an operator runs. A script that prints its arguments and variables replaces spark-submit."""

import json
import os
import stat
import subprocess
import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from load.servers.web_server import Handler, answering
from service.spark.places import DEPLOY, ROOT

SPARK_SUBMIT = """#!{python}
import json, os, sys
print(json.dumps([sys.argv[1:], dict(os.environ)]))
"""
MASTER = "spark://10.0.0.1:7077"


@dataclass(frozen=True, slots=True)
class Scripts:
    """The scripts with an environment of their own: the Python of the tests, and a spark-submit beside it."""

    environment: Mapping[str, str]

    def run(self, *words: str, cwd: Path = ROOT, **variables: str) -> subprocess.CompletedProcess[str]:
        environment = {**self.environment, **variables}
        return subprocess.run(words, capture_output=True, text=True, check=False, env=environment, cwd=cwd)

    def submit(self, **variables: str) -> subprocess.CompletedProcess[str]:
        return self.run("deploy/submit", "/etc/tidemark.toml", "--master", MASTER, **variables)

    def submitted(self, **variables: str) -> tuple[list[str], dict[str, str]]:
        """The arguments and the variables of spark-submit."""
        done = self.submit(**variables)
        assert done.returncode == 0, done.stderr
        arguments, environment = json.loads(done.stdout)
        return arguments, environment


@pytest.fixture(scope="module")
def scripts(tmp_path_factory: pytest.TempPathFactory) -> Scripts:
    folder = tmp_path_factory.mktemp("environment")
    programs = {
        "python": f'#!/bin/sh\nexec "{sys.executable}" "$@"\n',
        "spark-submit": SPARK_SUBMIT.format(python=sys.executable),
    }
    for name, text in programs.items():
        (folder / name).write_text(text)
        (folder / name).chmod(stat.S_IRWXU)
    inherited = {name: os.environ[name] for name in ("PATH", "JAVA_HOME", "TIDEMARK_JARS") if name in os.environ}
    made = Scripts(
        {
            **inherited,
            "HOME": str(folder),
            "PYSPARK_PYTHON": str(folder / "python"),
            "PYTHONPATH": str(ROOT),
            "TIDEMARK_CLUSTER_SECRET": str(folder / "secret"),
        }
    )
    done = made.run("deploy/secret", str(folder / "secret"))
    assert done.returncode == 0, done.stderr
    return made


def test_a_submission_sends_what_the_driver_needs_and_nothing_else(scripts: Scripts) -> None:
    own = {
        "LANG": "C.UTF-8",
        "TIDEMARK_OTEL__ENDPOINT": "http://c:4318/v1/traces?user=a@b",
        "TIDEMARK_REDIS__PASSWORD_FILE": "/etc/tidemark/redis.password",
    }
    # The service accepts an empty password as none.
    others = {"AWS_SECRET_ACCESS_KEY": "x", "SPARK_LOCAL_IP": "10.0.0.9", "TIDEMARK_KAFKA__PASSWORD": ""}
    _, sent = scripts.submitted(**own, **others)
    assert own.items() <= sent.items()
    assert sent.keys() - {"LC_CTYPE"} - own.keys() <= {
        *("PATH", "JAVA_HOME", "PYSPARK_PYTHON", "LOG4J_CONFIGURATION_FILE", "SPARK_SUBMIT_OPTS"),
        *("TIDEMARK_JARS", "TIDEMARK_CLUSTER_SECRET", "TIDEMARK_KAFKA__PASSWORD"),
    }


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("TIDEMARK_KAFKA__PASSWORD", "canary"),
        ("TIDEMARK_REDIS__URL", "redis://me:canary@127.0.0.1:1"),
        ("TIDEMARK_REDIS__URL", "redis://:can/ary@127.0.0.1:1"),
        ("TIDEMARK_REDIS__URL", "redis://redis:6379/0?password=canary"),
        ("TIDEMARK_REFERENCE__URL", "jdbc:postgresql://db/devices?user=me&password=canary"),
        ("TIDEMARK_REFERENCE__URL", "jdbc:sqlserver://db;user=me;password=canary"),
        ("TIDEMARK_MAVEN_REPOSITORY", "https://ci:canary@nexus.example/maven2"),
        ("TIDEMARK_REFERENCE__URL", "jdbc:oracle:thin:me/canary@//db:1521/devices"),
        ("TIDEMARK_REFERENCE__URL", "jdbc:mysql://db/devices?user=me&pwd=canary"),
        ("TIDEMARK_OTEL__ENDPOINT", "https://me:canary@collector/v1/traces"),
        ("TIDEMARK_OTEL__ENDPOINT", "https://collector/v1/traces?api_key=canary"),
        ("TIDEMARK_DASHBOARD_TOKEN", "canary"),
        ("TIDEMARK_REGISTRY__PASSWORD_FILE", "https://me:canary@vault/registry"),
    ],
)
def test_a_submission_with_a_secret_in_a_variable_is_refused(scripts: Scripts, name: str, value: str) -> None:
    done = scripts.submit(**{name: value})
    assert (done.returncode, done.stdout) == (10, "")
    assert f"tidemark: SETUP: the master would keep the secret in {name}. " in done.stderr
    assert "canary" not in done.stderr


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("TIDEMARK_REDIS__URL", "redis://tidemark@redis:6379/0"),
        ("TIDEMARK_KAFKA__BOOTSTRAP", "a:9092,b:9092"),
        ("TIDEMARK_FAILPOINT", "published:2:kill"),
        ("TIDEMARK_OTEL__ENDPOINT", "http://collector:4318/v1/traces"),
        ("TIDEMARK_MAVEN_REPOSITORY", "https://nexus.example/maven2"),
    ],
)
def test_a_variable_without_a_secret_is_sent(scripts: Scripts, name: str, value: str) -> None:
    _, sent = scripts.submitted(**{name: value})
    assert sent[name] == value


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("NOTE", "first line\nnot_a_variable=x\n9=y"),
        ("config", "/etc/another.toml"),
        ("jars", "/opt/jars"),
        ("a.name-of no shell", "canary"),
    ],
)
def test_a_submission_does_not_depend_on_other_variables_of_the_shell(scripts: Scripts, name: str, value: str) -> None:
    """A value of several lines was taken for several variables, and exported names of the script's own were unset."""
    plain = scripts.submitted()
    assert scripts.submitted(**{name: value}) == plain


def test_paths_are_right_with_an_exported_cdpath(scripts: Scripts, tmp_path: Path) -> None:
    """`cd` prints the folder then."""
    (tmp_path / "folder").mkdir()
    (tmp_path / "deploy").symlink_to(DEPLOY)
    done = scripts.run(
        *("deploy/submit", "folder/tidemark.toml", "--master", MASTER), cwd=tmp_path, CDPATH=str(tmp_path)
    )
    assert done.returncode == 0, done.stderr
    arguments, environment = json.loads(done.stdout)
    assert arguments[-4:] == [
        *(str(tmp_path / "deploy" / "daemon.py"), "", "--config"),
        str(tmp_path / "folder" / "tidemark.toml"),
    ]
    assert environment["LOG4J_CONFIGURATION_FILE"] == str(tmp_path / "deploy" / "log4j2.properties")


class _Pages:
    """A web page of Spark's that answers with a document."""

    document: Any = None

    def __init__(self) -> None:
        self.asked: list[str] = []
        self.url = ""

    def answer(self, request: Handler) -> None:
        self.asked.append(request.path)
        request.send_json(200, self.document)


@pytest.fixture
def pages() -> Iterator[_Pages]:
    made = _Pages()
    with answering(made.answer) as made.url:
        yield made


DRIVER = {"id": "driver-1", "state": "RUNNING", "worker": "worker-1", "starttime": "1700000000000"}
ALIVE = {"url": MASTER, "status": "ALIVE", "aliveworkers": 1, "activedrivers": [DRIVER], "completeddrivers": []}


def test_the_status_of_drivers_comes_from_the_masters_page(scripts: Scripts, pages: _Pages) -> None:
    pages.document = ALIVE
    proxies = dict.fromkeys(("http_proxy", "HTTP_PROXY", "all_proxy"), "http://127.0.0.1:9")
    done = scripts.run("deploy/driver", "status", f"{pages.url}/", **proxies)
    assert (done.returncode, pages.asked) == (0, ["/json/"]), done.stderr
    assert done.stdout.splitlines() == [
        f"{MASTER} ALIVE, workers: 1",
        "driver-1 RUNNING on worker-1, submitted 2023-11-14T22:13:20Z",
    ]


@pytest.mark.parametrize(
    ("document", "what"),
    [
        ({"id": "worker-1", "masterurl": MASTER, "cores": 4}, "the page of a worker"),
        ({"data": []}, "not the page of a master"),
        ([1], "not the page of a master"),
        ({**ALIVE, "activedrivers": None}, "not the page of a master"),
    ],
)
def test_a_page_of_no_master_is_an_error(scripts: Scripts, pages: _Pages, document: object, what: str) -> None:
    pages.document = document
    done = scripts.run("deploy/driver", "status", pages.url)
    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr == f"tidemark: {pages.url}: this is {what}. Name the master's page, such as http://HOST:8080\n"


def test_no_master_is_an_error_with_its_reason(scripts: Scripts) -> None:
    done = scripts.run("deploy/driver", "status", "http://127.0.0.1:9")
    assert done.returncode == 1
    assert done.stderr.startswith("tidemark: http://127.0.0.1:9: no master answers there: ")
