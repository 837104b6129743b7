"""Random walks through the service behind decoding: `make walks SEED=3 JSON=walks.json`.

    python -m load.walks [--walks 200] [--seed 7] [--json FILE]

The same seed makes the same walks. Walks end with the first that fails: it is shrunk, and printed as a script of its steps.
Exit status 1 then, 0 otherwise.
"""

import argparse
import json
import sys
import tempfile
import traceback
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

from hypothesis import HealthCheck, Phase, seed, settings
from hypothesis.stateful import run_state_machine_as_test

from load.servers.redis import Redis
from load.walks.machine import Walk

STEPS = 20


def walk(redis: Redis, number: int, walks: int, *, shrinks: bool = True) -> Counter[str]:
    """Make so many walks by this seed in this Redis, which is emptied; returns `walks` and `steps`.

    Raises what a walk raises, with its script as notes. Shrinking takes minutes, and its walks are counted, too.
    """
    options = settings(
        max_examples=walks,
        stateful_step_count=STEPS,
        deadline=None,
        database=None,
        print_blob=False,
        phases=(Phase.generate, Phase.shrink) if shrinks else (Phase.generate,),
        report_multiple_bugs=False,
        suppress_health_check=list(HealthCheck),
    )
    with redis.client() as client, tempfile.TemporaryDirectory() as folder:
        Walk.client, Walk.url, Walk.count = client, redis.url, Counter()
        Walk.folder = Path(folder) / "checkpoint"
        run_state_machine_as_test(seed(number)(Walk), settings=options)
    return Walk.count


def main(arguments: Sequence[str] | None = None) -> int:
    """0 when no walk fails, 1 otherwise."""
    parser = argparse.ArgumentParser(prog="make walks", description="Random walks, compared with plain lists.")
    parser.add_argument("--walks", type=int, default=200)
    parser.add_argument("--seed", type=int, default=7)
    parser.add_argument("--json", type=Path, metavar="FILE")
    options = parser.parse_args(arguments)
    print(f"seed {options.seed}", flush=True)
    failed = 0
    with tempfile.TemporaryDirectory() as folder, Redis(folder) as redis:
        try:
            walk(redis, options.seed, options.walks)
        except Exception:
            traceback.print_exc()
            failed = 1
    report = {**Walk.count, "failed": failed, "seed": options.seed}
    print(report)
    if options.json:
        options.json.write_text(json.dumps(report) + "\n", encoding="utf-8")
    return failed


if __name__ == "__main__":
    sys.exit(main())
