"""HDFS as two child processes: a NameNode and a DataNode of the version of Spark's Hadoop client.

The servers are in the jar of Hadoop's mini cluster (`tidemark jars --group hdfs`); their libraries come with PySpark.
"""

import contextlib
import json
import os
from collections.abc import Mapping, Sequence
from pathlib import Path

from load.servers.server_process import HOST, ServerProcess, Started, free_port
from load.servers.web import answer
from service.spark import jars
from service.spark.home import installed
from service.spark.java import java

_OPTIONS = ("-Xmx256m", "-XX:+UseSerialGC", "-XX:-UsePerfData")
_LIBRARIES = ("hadoop-client-", "slf4j-api", "log4j-", "jcl-over-slf4j", "commons-", "javax.servlet", "jakarta.servlet")


class _Server(ServerProcess):
    """A server of HDFS with its own folder of settings."""

    main = ""

    def __init__(self, folder: Path, settings: Mapping[str, object], web: int, port: int = 0) -> None:
        super().__init__(folder, port)
        self.settings = dict(settings)
        self._web = web

    def _prepare(self) -> None:
        conf = self.folder / "conf"
        conf.mkdir(exist_ok=True)
        pairs = "".join(
            f"<property><name>{name}</name><value>{value}</value></property>\n" for name, value in self.settings.items()
        )
        for file in ("core-site.xml", "hdfs-site.xml"):
            (conf / file).write_text(f"<configuration>\n{pairs}</configuration>\n")

    def _command(self) -> Sequence[str]:
        return self._program()

    def _program(self, *arguments: str) -> list[str]:
        shipped = [jar for jar in (installed() / "jars").glob("*.jar") if jar.name.startswith(_LIBRARIES)]
        path = os.pathsep.join(map(str, [self.folder / "conf", *jars.complete("hdfs"), *shipped]))
        temporary = f"-Djava.io.tmpdir={self.folder}"
        return [java(), *_OPTIONS, temporary, "-cp", path, f"org.apache.hadoop.hdfs.server.{self.main}", *arguments]

    def _answers(self) -> bool:
        return self._is_ready(answer(f"http://{HOST}:{self._web}/jmx?qry={self._bean}", 2.0)[1])

    _bean = ""

    def _is_ready(self, page: str) -> bool:
        raise NotImplementedError


class _NameNode(_Server):
    name, main = "namenode", "namenode.NameNode"
    _bean = "Hadoop:service=NameNode,name=FSNamesystemState"

    def _prepare(self) -> None:
        super()._prepare()
        if not (self.folder / "name" / "current").exists():
            self._run(self._program("-format", "-nonInteractive"))

    def _is_ready(self, page: str) -> bool:
        return '"FSState" : "Operational"' in page or '"FSState" : "safeMode"' in page


class _DataNode(_Server):
    name, main = "datanode", "datanode.DataNode"
    _bean = "Hadoop:service=DataNode,name=DataNodeInfo"

    def _is_ready(self, page: str) -> bool:
        return "BP-" in page  # it has registered with the NameNode's block pool


def _size(path: Path) -> int:
    with contextlib.suppress(FileNotFoundError):
        return path.stat().st_size
    return 0


class Hdfs(Started):
    """An HDFS of one block copy; `url` is its root. The data outlives `kill` and `start`."""

    def __init__(self, folder: Path) -> None:
        web, port = free_port(), free_port()
        common: dict[str, object] = {"fs.defaultFS": f"hdfs://{HOST}:{port}", "dfs.replication": 1}
        base = folder.absolute() / "hdfs"
        self.url = f"hdfs://{HOST}:{port}"
        name = {
            **common,
            "dfs.namenode.name.dir": base / _NameNode.name / "name",
            "dfs.namenode.http-address": f"{HOST}:{web}",
            "dfs.namenode.safemode.extension": 0,
            "dfs.namenode.datanode.registration.ip-hostname-check": "false",
        }
        self.name_node = _NameNode(base, name, web, port)
        data_web, data_port = free_port(), free_port()
        data = {
            **common,
            "dfs.datanode.data.dir": base / _DataNode.name / "data",
            "dfs.datanode.address": f"{HOST}:{data_port}",
            "dfs.datanode.http.address": f"{HOST}:{data_web}",
            "dfs.datanode.ipc.address": f"{HOST}:{free_port()}",
            "dfs.datanode.hostname": HOST,
        }
        self.data_node = _DataNode(base, data, data_web, data_port)

    def start(self) -> "Hdfs":
        """Start both; returns when a block can be written."""
        self.name_node.start()
        self.data_node.start()
        return self

    def environ(self) -> dict[str, str]:
        """Return variables for the service: none are needed."""
        return {}

    def totals(self, path: str) -> tuple[int, int]:
        """Return the number of files and folders of the NameNode, and the bytes of the DataNode's blocks; `path` is ignored."""
        web, bean = self.name_node.settings["dfs.namenode.http-address"], "Hadoop:service=NameNode,name=FSNamesystem"
        [state] = json.loads(answer(f"http://{web}/jmx?qry={bean}", 60.0)[1])["beans"]
        data = Path(str(self.data_node.settings["dfs.datanode.data.dir"]))
        blocks = [block for block in data.rglob("blk_*") if block.suffix != ".meta"]
        return int(state["FilesTotal"]), sum(_size(block) for block in blocks)

    def kill(self) -> None:
        """SIGKILL both."""
        self.data_node.kill()
        self.name_node.kill()

    def close(self) -> None:
        """End both; the data stays in the folder."""
        self.data_node.close()
        self.name_node.close()
