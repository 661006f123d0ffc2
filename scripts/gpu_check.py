"""`python -m scripts.gpu_check [out=DIR] [stages=a,b]`: the first hour on a GPU, in stages
that have not passed yet. Each stage is a process with its own verdict, so a stage that fails stops
no other.

The cost stages measure decoding steps at official sizes with random weights. They are compared with
the floor of this card, from the bandwidth that the run measures before its first step. What a step
takes besides (its kernels wait for each other) does not shrink on a card with faster memory.
"""

from __future__ import annotations

import json
import os
import re
import shlex
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from math import inf
from pathlib import Path
from typing import Any

from bench.__main__ import answered
from bench.config.words import settings
from bench.console import complain, say, terminable
from bench.data.errors import ConfigError, FolderError, unknown
from bench.data.files import ready_folder, write_text
from bench.records.load import Form, read_table
from bench.report.table import markdown, of_cells

FOLDER, VERDICTS = "results/gpu_check", "verdicts.json"
ROOT = Path(__file__).resolve().parents[1]
PASSED, OFF, FAILED, SKIPPED = "passed", "passed, not as expected", "failed", "skipped"
NEEDED = "gpu_check needs an NVIDIA card of compute capability 8.0 (Ampere) or newer with 8 GB"
OUT = "OUT"  # in a stage's command: its folder
LOG = "log.txt"  # in the stage's folder: all that its command prints
SECONDS = 480  # after which a stage is stopped
LONGEST = 1800  # the same of the longest stage
ANOLE = "model=anole_7b_random"
MEMORY_7B = 30.0  # GB: 14 of weights, a drafter, caches, and what a graph holds
# An AR step of 32 to 36 layers takes its floor and so many milliseconds (an H200), SLACK times that
# at most.
KERNELS_MS, SLACK = 1.1, 1.5
STEPS = {"ar": "AR", "sd_chain": "chain", "lantern_pp": "LANTERN++", "sjd": "SJD"}
Row = dict[str, Any]  # of a stage: verdict, seconds, note, and figures: name -> value, expected


@dataclass(frozen=True)
class Figure:
    """A number of a stage, and the range in which it is expected. It stands in run/<table>.csv in
    the row of `decoder`; without a column it is the number of tests that passed. kernels_ms: of a
    number of floors, see `KERNELS_MS`; the most follows from it."""

    name: str
    decoder: str = ""
    column: str = ""
    least: float = 1.0
    most: float = inf
    table: str = "roofline"
    kernels_ms: float = 0.0

    def limit(self, folder: Path) -> float:
        """The most that is expected on the card that left this folder."""
        if not self.kernels_ms:
            return self.most
        return SLACK * (1 + self.kernels_ms / self._cell(folder, "step_floor_ms"))

    def read(self, folder: Path) -> float:
        """Raises FolderError, LookupError or ValueError where the number is not there."""
        if not self.column:  # pytest ends well too where all tests are skipped
            log = (folder / LOG).read_text(encoding="utf-8", errors="replace")
            return float(re.findall(r"(\d+) passed", log)[-1])
        return self._cell(folder, self.column)

    def _cell(self, folder: Path, column: str) -> float:
        table = read_table(folder / "run" / f"{self.table}.csv", Form(("decoder", column)))
        return float(dict(zip(table["decoder"], table[column], strict=True))[self.decoder])


@dataclass(frozen=True)
class Stage:
    """command: its arguments; OUT stands for the stage's folder. memory_gb: of the card, where the
    stage needs more than every card has. seconds: after which it is stopped."""

    name: str
    command: list[str]
    figures: tuple[Figure, ...]
    memory_gb: float = 0.0
    seconds: int = SECONDS


def bench(study: str, *words: str) -> list[str]:
    own = [f"study={study}", "backend=cuda_graph", f"run_dir={OUT}/run"]
    return [sys.executable, "-m", "bench", "run", *own, *words]


def costs() -> tuple[Figure, ...]:
    """The card's bandwidth; milliseconds of a step of each decoder, and how many times its floor
    that is."""
    found = [Figure("bytes read per second", "ar", "bytes_per_s", 0.0)]
    for decoder, name in STEPS.items():
        kernels_ms = KERNELS_MS if decoder == "ar" else 0.0
        found.append(Figure(f"{name} step, ms", decoder, "step_ms", 0.0))
        found.append(
            Figure(f"{name} step, floors", decoder, "step_over_floor", kernels_ms=kernels_ms)
        )
    return tuple(found)


def tests() -> list[str]:
    """Names each test in the log as it ends, and stops in time where pytest-timeout is there. The
    project's own options need more plug-ins than a bare machine has. Of five decoders three are
    compiled, as all take too long; without peers and memory limits."""
    limits = ("addopts=", "timeout=120", f"session_timeout={SECONDS - 60}")
    options = ["-v", "-rfE", "--tb=short", "--continue-on-collection-errors"]
    options += [word for limit in limits for word in ("-o", limit)]
    chosen = "not (medusa or free or libraries or static_cache or fit)"
    return [sys.executable, "-m", "pytest", *options, "-k", chosen, "tests/gpu"]


STAGES = (
    Stage("costs", bench("gpu_costs"), costs()),
    Stage("costs_7b", bench("gpu_costs", ANOLE), costs(), MEMORY_7B),
    Stage("tests", tests(), (Figure("tests that passed"),)),
    Stage(
        "main",
        bench("main"),
        (
            Figure("AR step, floors", "ar", "step_over_floor"),
            Figure("AR, s/image", "ar", "latency_mean_s", 0.0, table="summary"),
            Figure("LANTERN++, codes per forward", "lantern_pp", "mal", 1.5, table="summary"),
            Figure("LANTERN++, speed-up", "lantern_pp", "speedup", 0.0, table="summary"),
        ),
        seconds=LONGEST,
    ),
)


def main(words: Sequence[str]) -> int:
    """Runs the stages: a verdict each, in one folder. 1 where one failed or there is no card, 2
    where it cannot, with what to do."""
    return answered(lambda asked: check(*read_words(asked)), words)


def check(out: Path, stages: Sequence[Stage]) -> int:
    """Writes verdicts.json, README.md, every stage's log and tables. A stage that fails stops no
    other; those that passed in an earlier call are not run again."""
    found = card()
    if isinstance(found, str):
        complain(f"error: {NEEDED}; found: {found}")
        return 1
    machine, memory_gb = found
    ready_folder(out)
    rows = earlier(out, machine)
    with terminable():
        for stage in stages:
            if rows.get(stage.name, {}).get("verdict") in (PASSED, OFF):
                say(f"{stage.name}: {rows[stage.name]['verdict']}, in an earlier call")
                continue
            say(f"{stage.name}: at most {stage.seconds // 60} minutes")
            rows[stage.name] = row = run_stage(stage, out.resolve() / stage.name, memory_gb)
            save(out, machine, rows)
            tell = complain if row["verdict"] == FAILED else say
            tell(f"{stage.name}: {row['verdict']} ({row['seconds']} s) {row['note']}".rstrip())
    say(f"send all of {out}: tar czf gpu_check.tgz {shlex.quote(str(out))}")
    return int(any(row["verdict"] == FAILED for row in rows.values()))


@dataclass(frozen=True)
class CheckSettings:
    """The settings of this program."""

    out: Path = Path(FOLDER)
    stages: str | None = None


def read_words(words: Sequence[str]) -> tuple[Path, list[Stage]]:
    """The folder and the stages. Raises ConfigError on another word and an unknown stage."""
    found, every = settings(CheckSettings, words), {s.name: s for s in STAGES}
    wanted = (found.stages or ",".join(every)).strip("[]").split(",")
    for wrong in set(wanted) - set(every):
        raise ConfigError(unknown("stage", wrong, every))
    return found.out, [s for s in STAGES if s.name in wanted]


def card() -> tuple[Row, float] | str:
    """What decides the times here, and the card's memory in GB; or why nothing can run here."""
    try:
        import torch

        from bench.measure.device import provenance
    except ImportError as error:
        return f"{error}; install it, or name a Python that has it"
    if torch.version.hip is not None or not torch.cuda.device_count():
        return f"torch {torch.__version__} sees no card; does nvidia-smi list one?"
    try:
        properties = torch.cuda.get_device_properties(0)
    except RuntimeError as error:  # a driver that is too old, or a card that does not answer
        return f"a card that cannot be used: {str(error).strip().partition(chr(10))[0]}"
    made, capability = provenance(torch.device("cuda")), f"{properties.major}.{properties.minor}"
    if properties.major < 8:
        return f"{made.gpu} with {capability}"
    commit = made.git_commit + (" and changes" if made.git_dirty else "")
    machine = {"gpu": made.gpu, "capability": capability, "cpu": made.cpu, "commit": commit}
    return machine | made.versions, properties.total_memory / 1e9


def earlier(out: Path, machine: Row) -> dict[str, Row]:
    """The verdicts that the folder holds. Raises FolderError where they are of another machine."""
    if not (out / VERDICTS).exists():
        return {}
    before = json.loads((out / VERDICTS).read_text(encoding="utf-8"))
    for name in ("gpu", "commit", "torch"):
        if before["machine"][name] != machine[name]:
            raise FolderError(
                f"{out} holds a check of {name} {before['machine'][name]}; here it is "
                f"{machine[name]}. Name another folder: out=DIR"
            )
    rows: dict[str, Row] = before["stages"]
    return rows


def run_stage(stage: Stage, folder: Path, memory_gb: float) -> Row:
    """Runs its command and reads its figures."""
    if memory_gb < stage.memory_gb:
        note = f"needs {stage.memory_gb:g} GB on the card, this one has {memory_gb:.0f}"
        return {"verdict": SKIPPED, "seconds": 0, "note": note, "figures": {}}
    folder.mkdir(parents=True, exist_ok=True)
    began, figures = time.perf_counter(), {}
    note = _trouble(
        [word.replace(OUT, str(folder)) for word in stage.command], folder / LOG, stage.seconds
    )
    verdict, off = FAILED if note else PASSED, []
    for one in () if note else stage.figures:
        try:
            value, most = one.read(folder), one.limit(folder)
        except (FolderError, OSError, LookupError, ValueError):
            verdict, note = FAILED, f"left no figure {one.name!r}"
            continue
        expected = f"{one.least:g} to {most:.3g}" if most < inf else f"from {one.least:g}"
        figures[one.name] = {"value": value, "expected": expected}
        if not one.least <= value <= most:
            off.append(f"{one.name}: {value:.3g}")
    if off and verdict == PASSED:
        verdict, note = OFF, ", ".join(off)
    seconds = round(time.perf_counter() - began)
    return {"verdict": verdict, "seconds": seconds, "note": note, "figures": figures}


def _trouble(words: list[str], log: Path, seconds: int) -> str:
    """What went wrong with a command; "" for nothing. All that it started ends with it."""
    with log.open("a", encoding="utf-8") as file:
        file.write(f"$ {shlex.join(words)}\n")
        file.flush()
        process = subprocess.Popen(
            words, stdin=subprocess.DEVNULL, stdout=file, stderr=subprocess.STDOUT, cwd=ROOT,
            env={**os.environ, "PYTHONUNBUFFERED": "1"}, start_new_session=True,
        )  # fmt: skip
        try:
            status: int | str = process.wait(seconds)
        except subprocess.TimeoutExpired:
            status = f"stopped after {seconds} s"
        finally:
            with suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()
    lines = log.read_text(encoding="utf-8", errors="replace").splitlines()
    said = next(line for line in reversed(lines) if line.strip(" ="))
    return f"status {status}: {said.strip(' =')} ({log})" if status else ""


def save(out: Path, machine: Row, rows: dict[str, Row]) -> None:
    """verdicts.json for programs and README.md for people."""
    document = json.dumps({"machine": machine, "stages": rows}, indent=2)
    write_text(out / VERDICTS, document + "\n")
    headings = ("stage", "verdict", "s", "here (expected)", "note")
    cells = []
    for name, row in rows.items():
        read = (f"{k} {v['value']:.3g} ({v['expected']})" for k, v in row["figures"].items())
        cells.append((name, row["verdict"], str(row["seconds"]), ", ".join(read), row["note"]))
    about = "\n".join(f"* {name}: {value}" for name, value in machine.items())
    table = markdown(of_cells(headings, cells))
    write_text(out / "README.md", f"# GPU check\n\n{about}\n\n{table}\n")


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
