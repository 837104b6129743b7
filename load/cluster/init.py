"""The first process of a host: takes the host's name, puts its hosts file in place, and collects processes that end.

    python -I -S init.py NAME HOSTS

All processes of the host end with it. It imports only the standard library.
"""

import os
import signal
import socket
import subprocess
import sys

READY = "ready"


def main(name: str, hosts: str) -> None:
    """Run until it is killed."""
    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGCHLD})
    socket.sethostname(name)
    subprocess.run(["mount", "--bind", hosts, "/etc/hosts"], check=True)
    print(READY, flush=True)
    while True:
        signal.sigwait({signal.SIGCHLD})
        try:
            while os.waitpid(-1, os.WNOHANG)[0]:
                pass
        except ChildProcessError:
            pass


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2])
