"""Namespaces of the run: `enter` starts the program again in them, `Network` gives hosts their addresses and cuts."""

import itertools
import os
import shutil
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

from load.servers.server_process import HOST_VARIABLE
from service.errors import SetupError

NETWORK = "198.18.0."
"""Addresses for tests of network devices (RFC 2544); they exist in these namespaces only."""
SERVERS = f"{NETWORK}1"
_INSIDE = "TIDEMARK_NAMESPACES"
_TOOLS = ("ip", "unshare", "nsenter", "mount")


def enter(module: str, arguments: Sequence[str]) -> None:
    """Run this program again in namespaces of its own, in place of this process; return when it runs there already.

    Raises SetupError where that is not possible.
    """
    if os.environ.get(_INSIDE):
        return
    missing = [tool for tool in _TOOLS if shutil.which(tool) is None]
    if os.geteuid() or missing:
        what = (
            f"Hosts need network namespaces: {', '.join(missing) + ' missing' if missing else 'this user is not root'}"
        )
        raise SetupError(what, remedy="Run it as root, with iproute2 and util-linux installed")
    os.environ |= {_INSIDE: "1", HOST_VARIABLE: SERVERS}
    command = ["unshare", "--net", "--mount", "--pid", "--fork", "--mount-proc", "--kill-child"]
    os.execvp(command[0], [*command, sys.executable, "-m", module, *arguments])


class Network:
    """The router between the hosts, in this process's network namespace."""

    def __init__(self) -> None:
        self._priorities = itertools.count(10)
        self._cuts: dict[tuple[str, str, int], int] = {}

    def start(self) -> None:
        """Give this namespace the servers' address, and forward between hosts."""
        ip("link", "set", "lo", "up")
        ip("address", "replace", f"{SERVERS}/32", "dev", "lo")
        # Rules of cuts come before the table of local addresses, which is first by default.
        if subprocess.run(["ip", "rule", "del", "priority", "0"], check=False, capture_output=True).returncode == 0:
            ip("rule", "add", "priority", "5000", "table", "local")
        for name, value in {"ip_forward": 1, "ip_early_demux": 0, "tcp_early_demux": 0}.items():
            (Path("/proc/sys/net/ipv4") / name).write_text(f"{value}\n")

    def connect(self, address: str, pid: int) -> str:
        """Connect the network namespace of a process; return the name of the router's end of the cable."""
        link = f"host{address.rpartition('.')[2]}"
        ip("link", "add", link, "type", "veth", "peer", "name", "eth0", "netns", str(pid))
        ip("link", "set", link, "up")
        ip("route", "add", f"{address}/32", "dev", link, "src", SERVERS)
        (Path("/proc/sys/net/ipv4/conf") / link / "proxy_arp").write_text("1\n")
        inside = ("nsenter", "--target", str(pid), "--net", "ip")
        for words in (
            "link set lo up",
            f"address add {address}/32 dev eth0",
            "link set eth0 up",
            f"route add {SERVERS} dev eth0",
            f"route add default via {SERVERS}",
        ):
            subprocess.run([*inside, *words.split()], check=True)
        return link

    def pull(self, link: str) -> None:
        """Pull the cable: peers get no FIN and no RST, whatever happens to the host."""
        subprocess.run(["ip", "link", "del", link], check=False, capture_output=True)

    def cut(self, one: str, other: str, port: int = 0) -> None:
        """Drop all packets between two addresses, without a word to either. `port`: only those to this port of `other`."""
        if port:
            self._drop(one, other, port)
        else:
            self._drop(one, other)
            self._drop(other, one)

    def heal(self) -> None:
        for priority in self._cuts.values():
            ip("rule", "del", "priority", str(priority))
        self._cuts.clear()

    def _drop(self, source: str, target: str, port: int = 0) -> None:
        if (source, target, port) in self._cuts:
            return
        priority = next(self._priorities)
        only = ("ipproto", "tcp", "dport", str(port)) if port else ()
        ip("rule", "add", "priority", str(priority), "from", source, "to", target, *only, "blackhole")
        self._cuts[source, target, port] = priority


def ip(*words: str) -> None:
    """Run `ip`; raises SetupError with its message."""
    done = subprocess.run(["ip", *words], check=False, capture_output=True, text=True)
    if done.returncode:
        what = f"ip {' '.join(words)} ended with status {done.returncode}: {done.stderr.strip()}"
        raise SetupError(what, remedy="The kernel must allow network namespaces, veth and policy routing")
