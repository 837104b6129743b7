"""The waterfall: which part of the service takes how much CPU, for a reading and in a batch, and what a batch waits for.

    python -m load.bench.profile [--devices 10000] [--rate 10000] [--seconds 60s] [--json FILE]

async-profiler samples the JVM by the CPU time of its threads, py-spy the Python processes a hundred times a second. Samples give
the shares, and the kernel's counters the CPU of each process: so what else the machine does changes the table little. A sample
belongs to the first slice that one of its frames names, from the innermost frame outwards. The service runs as in `make bench`,
behind a warm-up as long as the measurement.
"""

import platform
import re
import subprocess
import sys
import time
import zipfile
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import psutil

from load.bench import RATE
from load.bench.cpu import role, seconds_of_process
from load.fleet.fleet import Fleet, FleetSettings
from load.fleet.options import seconds_of
from load.instance import tree
from load.report import machine, options, reported
from load.servers.child_process import Child, spawn
from load.testbed import ROOT, VIEWS, Testbed
from service.errors import SetupError
from service.spark import jars, repository

FOLDER = ROOT / ".build" / "profile"
PY_SPY = ROOT / ".build" / "py-spy" / "bin" / "py-spy"
JVM, DRIVER, WORKERS = "JVM", "driver's Python", "Python workers"
_KINDS = {"jvm": JVM, "driver": DRIVER, "workers": WORKERS}
STARTS_S = 240.0
REST = "everything else"
_PTRACE = "The profilers need ptrace of the service's processes: run as root or as its user"

SLICES: Mapping[str, Sequence[tuple[str, str]]] = {
    JVM: (
        ("garbage collection", r"^GC Thread|^G1 |^VM Thread|^VM Periodic"),
        ("compiling of methods (JIT)", r"^C[12] CompilerThre"),
        ("generated code: compiling", r"^org/codehaus/(janino|commons)"),
        ("Kafka client", r"^org/apache/kafka"),
        ("shuffle", r"^org/apache/spark/(shuffle|util/collection|io/|storage/Shuffle)|net/jpountz|zstd"),
        ("Arrow, to and from Python", r"^org/apache/(arrow|spark/sql/execution/(arrow|python)|spark/api/python)"),
        ("decoding of Avro", r"^org/apache/(avro|spark/sql/avro)"),
        ("offsets and commits", r"streaming/(checkpointing|CommitLog|OffsetSeq|.*MetadataLog)|CheckpointFileManager"),
        ("admission: generated code", r"GeneratedClass|^org/apache/spark/sql/catalyst/(expressions/Unsafe|util)"),
        (
            "planning",
            r"^org/apache/spark/sql/(catalyst|execution/(QueryExecution|SparkPlan|adaptive|WholeStage))|scala/",
        ),
        ("Py4J", r"^py4j"),
        (
            "scheduling of tasks",
            r"^org/apache/spark/(scheduler|rpc|storage|executor|broadcast|MapOutput|ContextCleaner|network)",
        ),
    ),
    DRIVER: (
        ("outlets and delivery", r"/service/outlets/"),
        ("publication: progress, feed", r"/service/(publication|redis)/|/redis/"),
        ("checkpoint", r"/service/checkpoint/"),
        ("metrics, conditions", r"/service/monitoring/|/prometheus_client/"),
        ("Py4J and the plan of a batch", r"/py4j/|/pyspark/"),
        ("pipeline", r"/service/"),
    ),
    WORKERS: (
        ("publication: rows, Redis", r"/service/(publication|redis)/|/redis/"),
        ("state", r"/state/"),
        ("fold", r"/service/aggregation/"),
        ("admission: arrays, formats", r"/service/admission/"),
        ("operator, packing", r"/service/"),
        ("Arrow and the worker's loop", r"/pyspark/|/pyarrow/|/pandas/"),
    ),
}
"""By process: the slices, and the frames that name them. The threads of the JVM itself are the outermost frame."""


def shares(samples: Iterable[str], process: str) -> Counter[str]:
    """Count the samples of each slice. A sample is a line of frames, the outermost first, with `;` between them and a count."""
    slices = [(name, re.compile(pattern)) for name, pattern in SLICES[process]]
    counts: Counter[str] = Counter()
    for line in samples:
        stack, _, count = line.rpartition(" ")
        frames = [each.strip("[]") for each in reversed(stack.split(";"))]
        named = (name for frame in frames for name, pattern in slices if pattern.search(frame))
        counts[next(named, REST)] += int(count)
    return counts


@contextmanager
def sampled(pids: Mapping[str, int], folder: Path, seconds: float) -> Iterator[dict[str, Counter[str]]]:
    """Sample in this block, which lasts `seconds` at least; behind it the result has the samples by process and slice."""
    program, library = _async_profiler()
    jvm, found = str(pids[JVM]), dict[str, Counter[str]]()
    files = {name: folder / f"{number}.samples" for number, name in enumerate(pids)}
    _run([program, "start", "-e", "ctimer", "-i", "2ms", "-t", "--libpath", library, jvm])
    children = [_py_spy(pids[name], files[name], seconds, has_children=name == WORKERS) for name in pids if name != JVM]
    yield found
    for child in children:
        if child.wait(60):
            raise SetupError(f"py-spy ended with status {child.returncode}; see {folder}/*.log", remedy=_PTRACE)
    _run([program, "stop", "-o", "collapsed", "-f", str(files[JVM]), "--libpath", library, jvm])
    for name, file in files.items():
        found[name] = shares(file.read_text(errors="replace").splitlines(), name)


def _async_profiler() -> tuple[str, str]:
    """Return the paths of its program and its library, unpacked from the jar of the group `profiler`."""
    repository.fetch(jars.PROFILER, jars.root())
    with zipfile.ZipFile(jars.complete(jars.PROFILER)[0]) as archive:
        kind = "arm64" if platform.machine() == "aarch64" else "x64"
        names = [name for name in archive.namelist() if re.search(rf"/(asprof|lib)[^/]*-linux-{kind}", name)]
        paths = sorted(archive.extract(name, FOLDER / "async-profiler") for name in names)
    program, library = paths
    Path(program).chmod(0o755)
    return program, library


def _py_spy(pid: int, file: Path, seconds: float, *, has_children: bool) -> Child:
    if not PY_SPY.exists():
        raise SetupError(f"There is no {PY_SPY}", remedy="Run `make profile`, which installs it")
    command = [str(PY_SPY), "record", "--pid", str(pid), "--format", "raw", "--output", str(file), "--full-filenames"]
    command += ["--duration", str(int(seconds)), "--rate", "100", "--nonblocking", *(["--subprocesses"] * has_children)]
    return spawn(command, cwd=FOLDER, log=file.with_suffix(".log"))


def _run(command: Sequence[str]) -> None:
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        what = f"{' '.join(command[:2])} ended with status {done.returncode}: {(done.stderr or done.stdout).strip()}"
        raise SetupError(what, remedy=_PTRACE)


def processes(root: int) -> dict[str, list[psutil.Process]]:
    """Return the service's processes by kind; of the workers the one first that the others are children of."""
    by_kind: dict[str, list[psutil.Process]] = {JVM: [], DRIVER: [], WORKERS: []}
    for process in tree([root]):
        with suppress(psutil.NoSuchProcess):  # it has ended, or nobody has waited for it yet
            by_kind[_KINDS[role(process)]].append(process)
    return by_kind


def measure(devices: int, rate: int, seconds: float, seed: int) -> dict[str, Any]:
    """Run the service under load, and sample it behind a warm-up. Returns the document of the report."""
    fleet = Fleet(seed, FleetSettings(devices=devices, rate=rate, shares={}))
    with Testbed(FOLDER / "run", fleet, views=VIEWS) as testbed:
        testbed.start_service()
        testbed.wait(lambda: testbed.metrics().get("tidemark_query_running"), STARTS_S, "the query to start")
        load = testbed.start_generator(rate)
        testbed.wait(lambda: testbed.metrics().get("tidemark_records_total"), STARTS_S, "the first batch")
        time.sleep(seconds)
        known = processes(testbed.service_tree)
        pids = {name: each[0].pid for name, each in known.items()}
        with sampled(pids, FOLDER, seconds) as samples:  # the profilers have begun, which takes them a second
            before, began = testbed.wait_metrics(), time.monotonic()
            used = {name: _cpu(each) for name, each in known.items()}
            time.sleep(seconds)
            after, now = testbed.wait_metrics(), {name: _cpu(each) for name, each in known.items()}
            seconds = time.monotonic() - began
        testbed.end_generator(load)
        testbed.stop_service()
    delta = {name: value - before.get(name, 0.0) for name, value in after.items()}
    readings, batches = delta["tidemark_records_total"], max(1.0, delta["tidemark_batch"])
    cpu_s = {name: now[name] - used[name] for name in now}
    return {
        "devices": devices,
        "readings_per_second": round(readings / seconds),
        "batches": int(batches),
        "batch_ms": round(seconds / batches * 1000),
        "cpu_us_per_reading": {name: round(each / readings * 1e6, 2) for name, each in cpu_s.items()},
        "slices": rows(samples, cpu_s, readings, batches),
        "wall_ms": wall(delta, batches),
    }


def rows(
    samples: Mapping[str, Mapping[str, int]], cpu_s: Mapping[str, float], readings: float, batches: float
) -> list[dict[str, Any]]:
    """Return a row for each slice, the largest first: us of CPU for a reading, ms in a batch, and the share of the service."""
    seconds = {
        (process, name): cpu_s[process] * count / sum(counts.values())
        for process, counts in samples.items()
        for name, count in counts.items()
    }
    total = sum(seconds.values())
    return [
        {
            "process": process,
            "slice": name,
            "us_per_reading": round(each / readings * 1e6, 2),
            "ms_per_batch": round(each / batches * 1000, 1),
            "share": round(each / total, 3),
        }
        for (process, name), each in sorted(seconds.items(), key=lambda item: -item[1])
    ]


def wall(delta: Mapping[str, float], batches: float) -> dict[str, float]:
    """Return the ms of a batch by phase, as the service tells them."""
    phase = re.compile(r'tidemark_batch_seconds_sum\{phase="(.+)"\}')
    named = ((match[1], value) for name, value in delta.items() if (match := phase.fullmatch(name)))
    return {name: round(value / batches * 1000, 1) for name, value in named}


def _cpu(processes: Iterable[psutil.Process]) -> float:
    return sum(map(seconds_of_process, processes))


def table(report: Mapping[str, Any]) -> str:
    """Return the slices as lines of Markdown."""
    lines = ["| process | slice | us a reading | ms a batch | share |", "| --- | --- | ---: | ---: | ---: |"]
    for row in report["slices"]:
        figures = f"{row['us_per_reading']:.1f} | {row['ms_per_batch']:.1f} | {row['share']:.1%}"
        lines.append(f"| {row['process']} | {row['slice']} | {figures} |")
    return "\n".join(lines)


def main(argv: Sequence[str] | None = None) -> int:
    """Measure, and print the table and the report."""
    parser = options("make profile", "Where the service's CPU goes, by cause.")
    parser.add_argument("--devices", type=int, default=10_000)
    parser.add_argument("--rate", type=int, default=RATE)
    parser.add_argument("--seconds", type=seconds_of, default=60.0, metavar="60s")
    args = parser.parse_args(argv)

    def report() -> dict[str, Any]:
        FOLDER.mkdir(parents=True, exist_ok=True)
        measured = {"machine": machine(), **measure(args.devices, args.rate, args.seconds, args.seed)}
        print(table(measured), flush=True)
        return measured

    return reported(report, args.json)


if __name__ == "__main__":
    sys.exit(main())
