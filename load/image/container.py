"""Run a command in an image as a container runs it: its own mounts, processes and network, the image's user and environment.

The root is read-only, and only the given folders are writable. As in Docker and Podman, no program or library in them can be run
or loaded unless `exec` is among their options. The network has a loopback interface and nothing else, so a command that downloads
anything fails.
"""

import json
import os
import shlex
import subprocess
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

from load.image.build import buildah, container_of

# $1 the image's root, $2 user and group, $3 the working directory; then `path options` of writable folders up to `--`, then
# the command.
_ENTER = r"""
root=$1 user=$2 folder=$3; shift 3
ip link set lo up
hostname tidemark
touch "$root/etc/hosts"
mount --bind "$root" "$root"
mount -o remount,bind,ro "$root"
mount -t proc proc "$root/proc"
mount -t tmpfs -o mode=755 tmpfs "$root/dev"
for name in null zero full random urandom; do touch "$root/dev/$name"; mount --bind "/dev/$name" "$root/dev/$name"; done
ln -s /proc/self/fd "$root/dev/fd"
mkdir "$root/dev/shm"; mount -t tmpfs -o mode=1777 tmpfs "$root/dev/shm"
echo "127.0.0.1 localhost tidemark" > "$root/dev/hosts"; mount --bind "$root/dev/hosts" "$root/etc/hosts"
while [ "$1" != -- ]; do mount -t tmpfs -o "$2" tmpfs "$root$1"; shift 2; done
shift
cd "$root"
exec chroot "$root" setpriv --reuid "$user" --regid "$user" --clear-groups --no-new-privs --bounding-set=-all \
  sh -c 'cd "$0" && exec "$@"' "$folder" "$@"
"""


@dataclass(frozen=True, slots=True)
class Ran:
    status: int
    output: str


def mount_options(given: str, user: str) -> str:
    """Return the options of mount for a tmpfs: the defaults of Docker's and Podman's `--tmpfs`, then the given ones.

    Of options that contradict each other, such as `noexec` and `exec`, mount takes the last.
    """
    return ",".join(filter(None, ("rw,noexec,nosuid,nodev", f"mode=700,uid={user},gid={user}", given)))


class Container:
    """A context: a container of an image, mounted. `writable` are its volumes: path -> options of a tmpfs (`size=1g,exec`)."""

    def __init__(self, image: str, writable: Mapping[str, str]) -> None:
        self._writable = dict(writable)
        self._image = image
        self._open = ExitStack()

    def __enter__(self) -> Self:
        with ExitStack() as opened:
            name = opened.enter_context(container_of(self._image))
            self.root = Path(buildah("mount", name))
            self.config: dict[str, Any] = json.loads(buildah("inspect", "--type", "image", self._image))["OCIv1"][
                "config"
            ]
            self._open = opened.pop_all()
        return self

    def __exit__(self, *_: object) -> None:
        self._open.close()

    def run(self, *words: str, seconds: float, environment: Mapping[str, str] | None = None) -> Ran:
        """Run the entry point with arguments, or with the image's own; SIGKILL to all of it after `seconds` (status 124)."""
        command = [*self.config["Entrypoint"], *(words or self.config.get("Cmd", ()))]
        variables = dict(each.split("=", 1) for each in self.config["Env"])
        user = self.config["User"].split(":")[0]
        volumes = [word for path, given in self._writable.items() for word in (path, mount_options(given, user))]
        enter: Sequence[str] = [
            *("unshare", "--mount", "--pid", "--fork", "--kill-child", "--net", "--ipc", "--uts"),
            *("sh", "-eu", "-c", _ENTER, "sh", str(self.root), user, self.config["WorkingDir"]),
            *(*volumes, "--", *command),
        ]
        try:
            done = subprocess.run(
                enter,
                env={**variables, **(environment or {}), "PATH": f"{variables['PATH']}:/usr/sbin:/sbin"},
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                text=True,
                errors="replace",
                timeout=seconds,
                check=False,
            )
        except subprocess.TimeoutExpired as late:
            text = late.stdout.decode(errors="replace") if isinstance(late.stdout, bytes) else ""
            return Ran(124, f"{text}\n{shlex.join(command)}: not over after {seconds:.0f} s")
        return Ran(done.returncode, done.stdout)

    def size_mb(self, path: str = "/") -> int:
        """Megabytes (10^6 bytes) of the files below a folder of the image."""
        inodes: dict[int, int] = {}
        for folder, _, files in os.walk(self.root / path.lstrip("/")):
            for name in files:
                status = (Path(folder) / name).lstat()
                inodes[status.st_ino] = status.st_blocks * 512
        return round(sum(inodes.values()) / 1e6)
