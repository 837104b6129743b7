"""The command line: start the parts of docs/tutorial.md and run until Ctrl-C.

python -m load.tutorial FOLDER
"""

import argparse
import signal
import sys
import threading
from pathlib import Path

from load.report import print_error
from load.servers.machine import check_machine
from load.testbed import ROOT
from load.tutorial.parts import ADDRESSES, Parts
from service.errors import TidemarkError


def main() -> int:
    """Start the parts and wait for a signal; return the exit status."""
    parser = argparse.ArgumentParser(prog="make tutorial", description="The parts that docs/tutorial.md uses.")
    parser.add_argument("folder", type=Path, help="for the parts' data, passwords and addresses")
    folder = parser.parse_args().folder
    ended = threading.Event()
    for each in (signal.SIGTERM, signal.SIGINT):
        signal.signal(each, lambda *_: ended.set())
    try:
        check_machine(folder=ROOT)
        with Parts(folder):
            print(f"ready: in another terminal, cd {folder} && . ./{ADDRESSES}. Ctrl-C ends all parts.", flush=True)
            ended.wait()
    except TidemarkError as error:
        return print_error(error)
    return 0


if __name__ == "__main__":
    sys.exit(main())
