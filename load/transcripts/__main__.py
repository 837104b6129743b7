"""Runs all transcripts by all executors.

    python -m load.transcripts [--json FILE] [--executor pure|builders|live ...]

tests/transcripts/*.yaml must hold; those of tests/transcripts/wrong must be found wrong by every executor. Exit status 0
only then.
"""

import argparse
import json
import shutil
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Protocol

from load.parts import check_machine
from load.rules import read_reference, read_rules
from load.stage import ROOT, to_toml
from load.transcripts.builders import Builders
from load.transcripts.live import Live
from load.transcripts.profile import document, sites, write_reference
from load.transcripts.pure import Pure
from load.transcripts.transcript import Output, Record, Transcript, TranscriptError, changes, judge, load
from service import session, settings
from service.errors import TidemarkError

FOLDER = ROOT / ".build" / "transcripts"
RIGHT = ROOT / "tests" / "transcripts"
WRONG = RIGHT / "wrong"
NAMES = ("pure", "builders", "live")


class Executor(Protocol):
    """Takes all transcripts of a run, one after the other."""

    name: str
    watermark_ms: int

    def begin(self, transcript: Transcript) -> None:
        """Another transcript."""
        ...

    def step(self, transcript: Transcript, records: tuple[Record, ...]) -> Output:
        """Everything there is after these records, of all transcripts."""
        ...


def run(transcript: Transcript, executor: Executor) -> None:
    """Raise TranscriptError where the output is not as the transcript says."""
    executor.begin(transcript)
    before: Output = {}
    for number, step in enumerate(transcript.steps):
        after = transcript.mine(executor.step(transcript, step.records))
        judge(transcript, number, changes(before, after), executor.watermark_ms)
        before = after


@contextmanager
def executor(name: str, folder: Path, transcripts: list[Transcript]) -> Iterator[Executor]:
    """The executor of that name, in `folder`."""
    folder.mkdir(parents=True)
    if name == "live":
        with Live(folder / "stage", transcripts) as live:
            yield live
        return
    given = document(folder)
    write_reference(folder, transcripts)
    if name == "pure":
        config = folder / "tidemark.toml"
        config.write_text(to_toml(given), encoding="utf-8")
        rules = read_rules(config)
        yield Pure(rules, read_reference(rules))
        return
    spark = session.build(master="local[2]")
    try:
        builders = Builders(spark, settings.parse(given), folder, sites(transcripts))
        try:
            yield builders
        finally:
            builders.close()
    finally:
        spark.stop()


def play(name: str, folder: Path, right: Sequence[Transcript], wrong: Sequence[Transcript]) -> dict[str, list[str]]:
    """By one executor: what failed, and which of the wrong ones were found out, with what was said of them."""
    failed: list[str] = []
    rejected: list[str] = []
    with executor(name, folder, [*right, *wrong]) as made:
        for transcript in (*right, *wrong):
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
    parser = argparse.ArgumentParser(prog="make transcripts", description="Transcripts, by three executors.")
    parser.add_argument("--json", type=Path, metavar="FILE")
    parser.add_argument("--executor", action="append", choices=NAMES, help="one of them; all without it")
    args = parser.parse_args(argv)
    names = args.executor or NAMES
    try:
        check_machine(folder=ROOT)
        every = load(*sorted(RIGHT.glob("*.yaml")), *sorted(WRONG.glob("*.yaml")))
        wrong = [each for each in every if (WRONG / each.place).exists()]
        right = [each for each in every if each not in wrong]
        shutil.rmtree(FOLDER, ignore_errors=True)
        found = {name: play(name, FOLDER / name, right, wrong) for name in names}
    except (TidemarkError, TranscriptError) as error:
        print(f"tidemark: {error}", file=sys.stderr)
        return getattr(error, "status", 1)
    for name, each in found.items():
        print(
            f"{name}: {len(right)} transcripts, {len(each['failed'])} failed; {len(each['rejected'])} of {len(wrong)} found wrong"
        )
        print("".join(f"  {text}\n" for text in each["failed"]), end="")
    report = {
        "transcripts": len(right),
        "steps": sum(len(each.steps) for each in right),
        "executors": len(found),
        "rejected_as_they_must": min(len(each["rejected"]) for each in found.values()),
        "failed": sum(len(each["failed"]) for each in found.values()),
        "found": found,
    }
    if args.json:
        args.json.write_text(json.dumps(report, indent=2) + "\n", encoding="utf-8")
    return 1 if report["failed"] else 0


if __name__ == "__main__":
    sys.exit(main())
