"""Random walks through the past on real parts: `make walks REAL=1 WALKS=20 SEED=3 JSON=walks.json`.

    python -m load.walks.real [--walks 20] [--seed 7] [--steps 12] [--only 4] [--json FILE] [--keep-going] [--no-shrink]

The same seed makes the same walks. Walk 4 of seed 7 alone: --seed 7 --only 4. Walks end with the first that fails, unless
--keep-going: its steps are printed, and fewer that fail, too. Exit status 1 then, 0 otherwise.
"""

import argparse
import json
import sys
import tempfile
import time
import traceback
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

from load.walks.real import parts
from load.walks.real.walk import play, shrink, steps_of

STEPS = 12


def main(arguments: Sequence[str] | None = None) -> int:
    """0 when no walk fails, 1 otherwise."""
    parser = argparse.ArgumentParser(prog="make walks REAL=1", description="Random walks on real parts.")
    parser.add_argument("--walks", type=int, default=20)
    parser.add_argument("--seed", type=int, default=7)
    parser.add_argument("--steps", type=int, default=STEPS)
    parser.add_argument("--only", type=int, action="append")
    parser.add_argument("--json", type=Path, metavar="FILE")
    parser.add_argument("--keep-going", action="store_true")
    parser.add_argument("--no-shrink", action="store_true")
    options = parser.parse_args(arguments)
    print(f"seed {options.seed}", flush=True)
    counts, failures, began_s = Counter[str](), list[int](), time.monotonic()
    with tempfile.TemporaryDirectory() as folder, parts.started(Path(folder)) as running:
        for number in options.only or range(options.walks):
            seed, walk_s = f"{options.seed}/{number}", time.monotonic()
            steps = steps_of(seed, options.steps)
            walk, error = play(running, seed, steps)
            counts.update(walks=1, steps=len(steps), compared=walk.compared, open=walk.open, skipped=walk.skipped)
            print(f"walk {number}: {time.monotonic() - walk_s:.1f} s {'FAILED' if error else 'right'}", flush=True)
            if error is None:
                continue
            failures.append(number)
            print("\n".join(walk.said), flush=True)
            traceback.print_exception(error)
            if not options.no_shrink:
                walk, left = shrink(running, seed, steps)
                print("fewer steps that fail:", *walk.said, left, sep="\n", flush=True)
            if not options.keep_going:
                break
    report = {**counts, "failed": len(failures), "which": failures, "seed": options.seed}
    report |= {"seconds": round(time.monotonic() - began_s, 1)}
    print(report)
    if options.json:
        options.json.write_text(json.dumps(report) + "\n", encoding="utf-8")
    return 1 if failures else 0


if __name__ == "__main__":
    sys.exit(main())
