"""A ZooKeeper server as a child process: the jars that PySpark brings for its masters' client have the server, too."""

import contextlib
import os
import socket
from collections.abc import Sequence

from load.servers.server_process import HOST, ServerProcess
from service.spark.home import installed
from service.spark.java import java

_JARS = ("zookeeper-", "netty-", "slf4j-api", "log4j-", "metrics-core", "snappy-java", "commons-")
_SESSION_MS = 10_000


class ZooKeeper(ServerProcess):
    """One server with its data in `folder`.

    Its clients' sessions end 10 s after the last sign of life, whatever time the clients ask for. Spark's masters ask for 60 s
    (SparkCuratorUtil, 4.1.1), and so long no other master takes the place of one that was killed.
    """

    name = "zookeeper"

    def _prepare(self) -> None:
        settings = {
            "dataDir": self.folder / "data",
            "clientPort": self.port,
            "clientPortAddress": HOST,
            "tickTime": 1000,
            "maxSessionTimeout": _SESSION_MS,
            "admin.enableServer": "false",
            "4lw.commands.whitelist": "ruok",
        }
        (self.folder / "zoo.cfg").write_text("".join(f"{key}={value}\n" for key, value in settings.items()))

    def _command(self) -> Sequence[str]:
        jars = [jar for jar in sorted((installed() / "jars").glob("*.jar")) if jar.name.startswith(_JARS)]
        options = ["-Xmx128m", "-XX:+UseSerialGC", "-XX:-UsePerfData", f"-Djava.io.tmpdir={self.folder}"]
        main = "org.apache.zookeeper.server.quorum.QuorumPeerMain"
        return [java(), *options, "-cp", os.pathsep.join(map(str, jars)), main, str(self.folder / "zoo.cfg")]

    def _answers(self) -> bool:
        with contextlib.suppress(OSError), socket.create_connection((HOST, self.port), timeout=1.0) as connection:
            connection.sendall(b"ruok")
            return connection.recv(16) == b"imok"
        return False
