"""An S3 server as a child process: the Versity S3 gateway, which keeps objects as files of a folder."""

import contextlib
import os
from collections.abc import Mapping, Sequence
from pathlib import Path

from load.servers import go_program
from load.servers.server_process import ServerProcess
from load.servers.web import answer

MODULE = "github.com/versity/versitygw/cmd/versitygw@v1.8.0"
ACCESS, SECRET = "tidemark", "only-for-tests"
BUCKET = "tidemark"


def totals(folder: Path) -> tuple[int, int]:
    """Return the number of files below a folder of this machine, and their bytes."""
    sizes = []
    for path in folder.rglob("*"):
        with contextlib.suppress(FileNotFoundError):
            if path.is_file():
                sizes.append(path.stat().st_size)
    return len(sizes), sum(sizes)


class S3(ServerProcess):
    """One server with one bucket. What it has acknowledged is in its folder, also after a kill."""

    name = "s3"

    @property
    def url(self) -> str:
        """The bucket's root, for Hadoop."""
        return f"s3a://{BUCKET}"

    def environ(self) -> dict[str, str]:
        """Return variables for the service: the credentials, and a folder with Hadoop's settings for this server."""
        conf = self.folder / "hadoop-conf"
        conf.mkdir(parents=True, exist_ok=True)
        settings = {
            "fs.s3a.endpoint": f"http://{self.address}",
            "fs.s3a.endpoint.region": "us-east-1",
            "fs.s3a.path.style.access": "true",
        }
        pairs = "".join(
            f"<property><name>{name}</name><value>{value}</value></property>\n" for name, value in settings.items()
        )
        (conf / "core-site.xml").write_text(f"<configuration>\n{pairs}</configuration>\n")
        return {"AWS_ACCESS_KEY_ID": ACCESS, "AWS_SECRET_ACCESS_KEY": SECRET, "HADOOP_CONF_DIR": str(conf)}

    def totals(self, path: str) -> tuple[int, int]:
        """Return the number of objects below a path of the bucket, and their bytes."""
        return totals(self.folder / "data" / BUCKET / path)

    def _prepare(self) -> None:
        go_program.built(MODULE)
        (self.folder / "data" / BUCKET).mkdir(parents=True, exist_ok=True)

    def _command(self) -> Sequence[str]:
        return [str(go_program.built(MODULE)), "--port", self.address, "posix", str(self.folder / "data")]

    def _environ(self) -> Mapping[str, str]:
        return {**os.environ, "ROOT_ACCESS_KEY_ID": ACCESS, "ROOT_SECRET_ACCESS_KEY": SECRET}

    def _answers(self) -> bool:
        return answer(f"http://{self.address}/", 2.0)[0] != 0  # it asks for a signature
