"""Runs all transcripts by all executors.

    python -m load.transcripts [--json FILE] [--executor pure|live ...] [NAME ...]

tests/transcripts/*.yaml, or those of the names, without .yaml, must hold; those of tests/transcripts/wrong must be found
wrong by every executor. Exit status 0 only then.
"""

import argparse
import json
import shutil
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Protocol

from load.judge.rules import read_reference, read_rules
from load.servers.machine import check_machine
from load.testbed import ROOT, to_toml
from load.transcripts.live import Live
from load.transcripts.profile import IDLE_AFTER_MS, document, registry, write_reference
from load.transcripts.pure import Pure
from load.transcripts.transcript import Output, Step, Transcript, TranscriptError, changes, judge, load
from service.errors import TidemarkError

FOLDER = ROOT / ".build" / "transcripts"
RIGHT = ROOT / "tests" / "transcripts"
WRONG = RIGHT / "wrong"
NAMES = ("pure", "live")


class Executor(Protocol):
    """Takes all transcripts of a run, one after the other."""

    @property
    def watermark_ms(self) -> int: ...

    def begin(self, transcript: Transcript) -> None:
        """Another transcript."""
        ...

    def step(self, transcript: Transcript, step: Step) -> Output:
        """Everything there is after the step, of all transcripts."""
        ...

    def replay(self, transcript: Transcript) -> Output:
        """Return the result of a run that reads all records at once and then sees the last `idle_after` of silence."""
        ...


def run(transcript: Transcript, executor: Executor) -> None:
    """Raise TranscriptError where the output is not as the transcript says."""
    executor.begin(transcript)
    before: Output = {}
    for number, step in enumerate(transcript.steps):
        if step.replay:
            rejects = {item: fields for item, fields in before.items() if item.startswith("reject ")}
            after = _without_revision(rejects | dict(transcript.mine(executor.replay(transcript))))
            before = _without_revision(before)
        else:
            after = transcript.mine(executor.step(transcript, step))
        judge(transcript, number, changes(before, after), executor.watermark_ms)
        before = after


def _without_revision(output: Output) -> Output:
    """`revision` tells what readers have seen on the way."""
    return {item: {name: fields[name] for name in fields if name != "revision"} for item, fields in output.items()}


@contextmanager
def executor(name: str, folder: Path, transcripts: list[Transcript]) -> Iterator[Executor]:
    """The executor of that name, in `folder`."""
    folder.mkdir(parents=True)
    with registry() as url:
        if name == "live":
            with Live(folder / "stage", transcripts, url) as live:
                yield live
            return
        config = folder / "tidemark.toml"
        config.write_text(to_toml(document(folder, url)), encoding="utf-8")
        write_reference(folder, transcripts)
        rules = read_rules(config)
        yield Pure(rules, read_reference(rules), IDLE_AFTER_MS)


def files(*names: str) -> list[Path]:
    """The files of these names, or all that hold, and then the wrong ones."""
    return [
        *([RIGHT / f"{name}.yaml" for name in names] or sorted(RIGHT.glob("*.yaml"))),
        *sorted(WRONG.glob("*.yaml")),
    ]


def play(name: str, folder: Path, right: Sequence[Transcript], wrong: Sequence[Transcript]) -> dict[str, Any]:
    """Run all by one executor. `failed` are the right ones that do not hold and the wrong ones that do.

    `rejected` are the errors of the wrong ones.
    """
    failed: list[str] = []
    rejected: list[str] = []
    with executor(name, folder, [*right, *wrong]) as made:
        for transcript in sorted((*right, *wrong), key=lambda each: each.origin_ms):  # they share one timeline
            try:
                run(transcript, made)
            except TranscriptError as error:
                (rejected if transcript in wrong else failed).append(str(error))
            else:
                if transcript in wrong:
                    failed.append(f"{transcript.place}: {transcript.name}: was not found wrong")
    return {"failed": failed, "rejected": rejected}


def main(argv: Sequence[str] | None = None) -> int:
    """0 when the right ones hold and the wrong ones do not, by every executor; 1 otherwise."""
    parser = argparse.ArgumentParser(prog="make transcripts", description="Transcripts, by two executors.")
    parser.add_argument("--json", type=Path, metavar="FILE")
    parser.add_argument("--executor", action="append", choices=NAMES, help="one of them; both without it")
    parser.add_argument(
        "names", nargs="*", metavar="NAME", help="files in tests/transcripts, without .yaml; all without it"
    )
    args = parser.parse_args(argv)
    names = args.executor or NAMES
    results: dict[str, dict[str, Any]] = {}
    try:
        check_machine(folder=ROOT)
        every = load(*files(*args.names))
        wrong = [each for each in every if (WRONG / each.place).exists()]
        right = [each for each in every if each not in wrong]
        for name in names:
            begun = time.monotonic()
            shutil.rmtree(FOLDER / name, ignore_errors=True)
            results[name] = play(name, FOLDER / name, right, wrong)
            results[name]["seconds"] = round(time.monotonic() - begun, 1)
            print(_summary(name, results[name], right, wrong), flush=True)
    except (TidemarkError, TranscriptError) as error:
        print(f"tidemark: {error}", file=sys.stderr)
        return getattr(error, "status", 1)
    report = {
        "transcripts": len(right),
        "steps": sum(len(each.steps) for each in right),
        "executors": len(results),
        "rejected_as_they_must": min(len(each["rejected"]) for each in results.values()),
        "failed": sum(len(each["failed"]) for each in results.values()),
        "found": results,
    }
    if args.json:
        args.json.write_text(json.dumps(report, indent=2) + "\n", encoding="utf-8")
    return 1 if report["failed"] else 0


def _summary(name: str, result: Mapping[str, Any], right: Sequence[Transcript], wrong: Sequence[Transcript]) -> str:
    rejected = f"{len(result['rejected'])} of {len(wrong)} found wrong"
    text = f"{name}: {len(right)} transcripts, {len(result['failed'])} failed; {rejected}; {result['seconds']:.0f} s"
    return "\n  ".join([text, *result["failed"]])


if __name__ == "__main__":
    sys.exit(main())
