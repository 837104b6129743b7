"""Files on a real HDFS and a real S3 server, by the session that a service has."""

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from load.cluster.stores import JARS
from load.servers.hdfs import Hdfs
from load.servers.s3 import S3
from load.servers.server_process import PATIENCE
from load.testbed import ROOT
from tests.stream.records import make_document

pytestmark = [
    pytest.mark.integration,
    pytest.mark.skipif(not JARS.exists(), reason="`make cluster ONLY=file` fetches the jars and builds the S3 server"),
]

PROGRAM = """
import json, sys
from contextlib import suppress
from service.settings.loading import parse
from service.spark import session
from service.spark.files import Files

settings = parse(json.loads(sys.argv[1]))
spark = session.build(settings, master="local[1]")
files = Files(spark, settings.service.checkpoint)
made = []
for content in (b"first", b"second"):
    files.replace("folder/pointer", content)
    with suppress(FileExistsError):
        files.create("manifest", content)
        made.append(content.decode())
files.copy("folder/pointer", "folder/sub/copy")
files.move_folder("folder/sub", "folder/other")
files.move_folder("folder/other", "folder/sub")
copied = [files.read("folder/sub/copy").decode(), files.folders("folder"), files.folders("none")]
files.remove_folder("folder/sub")
copied += [files.folders("folder"), [each.name for each in files.walk() if "copy" in each.name]]
print(json.dumps([copied, files.read("folder/pointer").decode(), files.read("manifest").decode(), made]))
"""


RESHAPED = """
import json, sys
from pathlib import Path
from load.servers.kafka import Broker
from load.servers.redis import Redis
from service.checkpoint import resume, shape
from service.checkpoint.manifest import DOCUMENT
from service.commands import verify
from service.spark import session
from service.spark.files import Files
from tests.integration.test_reshape import Reshaped, readings

folder, views = Path(sys.argv[1]), [{"name": "device", "by": ["device"], "window": "1 m"}]
sections = {"service": {"checkpoint": sys.argv[2]}, "views": views, "sessions": {"gap": "30 s", "buckets": 2}}
with Broker(folder) as broker, Redis(folder) as redis:
    world = Reshaped(None, broker, redis, folder, "store", **sections)

    def begin():
        world.spark = session.build(world.settings, master="local[2]")
        return shape.of_manifest(DOCUMENT.required(Files(world.spark, sys.argv[2])))

    world.spark = session.build(world.settings, master="local[2]")
    resume.prepare(world.spark, world.settings)
    world.term(*readings(0), *readings(25))
    found = []
    for arguments, at in ((("--buckets", "3"), 50), (("--buckets", "5", "--partitions", "4"), None), (("--undo",), 75)):
        found += [world.command(*arguments), begin()]
        if at:
            world.runs(*readings(at))
            world.assert_right()
    found += [len(verify.verify(world.spark, world.settings).damage), world.command("--forget")]
print(json.dumps(found))
"""


@pytest.fixture(params=[Hdfs, S3])
def store(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Hdfs | S3]:
    monkeypatch.setenv("TIDEMARK_JARS", str(JARS))
    with request.param(tmp_path) as server:
        yield server


def result(store: Hdfs | S3, program: str, *arguments: str) -> Any:
    """Run a program of Python with the store; return the JSON of its last line."""
    command, environ = [sys.executable, "-c", program, *arguments], {**os.environ, **store.environ()}
    done = subprocess.run(
        command, cwd=ROOT, env=environ, capture_output=True, text=True, check=False, timeout=300 * PATIENCE
    )
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout.splitlines()[-1])


def test_a_checkpoint_gets_other_buckets_and_goes_on(store: Hdfs | S3, tmp_path: Path) -> None:
    found = result(store, RESHAPED, str(tmp_path), f"{store.url}/checkpoint")
    assert found == [0, [3, 3], 0, [5, 4], 0, [3, 3], 0, 0]


def test_a_file_that_is_written_again_is_replaced_and_a_new_one_is_made_once(store: Hdfs | S3, tmp_path: Path) -> None:
    document = make_document(tmp_path, service={"checkpoint": f"{store.url}/checkpoint"})
    found = result(store, PROGRAM, json.dumps(document))
    assert found == [["second", ["sub"], [], [], []], "second", "first", ["first"]]
