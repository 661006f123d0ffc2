"""`python -m scripts.gpu_check [out=DIR] [stages=a,b]`: the first hour on a GPU, in stages. Each is
a process with its own verdict, so a stage that fails stops no other.

The cost stages measure decoding steps at official sizes with random weights, in milliseconds and in
floors of this card, from the bandwidth that the run measures before its first step.
"""

from __future__ import annotations

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
from pathlib import Path

from bench.__main__ import answered
from bench.config.words import settings
from bench.console import complain, say, terminable
from bench.data.errors import ConfigError, FolderError, unknown
from bench.data.files import ready_folder, write_text
from bench.records.load import Form, read_table
from bench.report.table import markdown, of_cells

FOLDER = "results/gpu_check"
ROOT = Path(__file__).resolve().parents[1]
PASSED, FAILED, SKIPPED = "passed", "failed", "skipped"
NEEDED = "gpu_check needs an NVIDIA card of compute capability 8.0 (Ampere) or newer with 8 GB"
OUT = "OUT"  # in a stage's command: its folder
LOG = "log.txt"  # in the stage's folder: all that its command prints
SECONDS = 480  # after which a stage is stopped
LONGEST = 1800  # the same of the longest stage
ANOLE = "model=anole_7b_random"
MEMORY_7B = 30.0  # GB: 14 of weights, a drafter, caches, and what a graph holds
Figure = tuple[str, str, str]  # table of a run, decoder, column
COSTS = tuple(
    ("roofline", decoder, column)
    for decoder in ("ar", "sd_chain", "lantern_pp", "sjd")
    for column in ("step_ms", "step_over_floor")
)
MAIN = (
    ("roofline", "ar", "step_over_floor"),
    ("summary", "ar", "latency_mean_s"),
    ("summary", "lantern_pp", "mal"),
    ("summary", "lantern_pp", "speedup"),
)


@dataclass(frozen=True)
class Stage:
    """command: its arguments; OUT stands for the stage's folder. figures: of its run; () of tests.
    memory_gb: of the card, where it needs more than every card has. seconds: after which it is
    stopped."""

    name: str
    command: list[str]
    figures: tuple[Figure, ...]
    memory_gb: float = 0.0
    seconds: int = SECONDS


@dataclass(frozen=True)
class Row:
    """What came of a stage."""

    verdict: str
    seconds: float
    note: str = ""
    figures: tuple[str, ...] = ()


def bench(study: str, *words: str) -> list[str]:
    own = [f"study={study}", "backend=cuda_graph", f"run_dir={OUT}/run"]
    return [sys.executable, "-m", "bench", "run", *own, *words]


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
    Stage("costs", bench("gpu_costs"), COSTS),
    Stage("costs_7b", bench("gpu_costs", ANOLE), COSTS, MEMORY_7B),
    Stage("tests", tests(), ()),
    Stage("main", bench("main"), MAIN, seconds=LONGEST),
)


def main(words: Sequence[str]) -> int:
    """Runs the stages: a verdict each, in one folder. 1 where one failed or there is no card, 2
    where it cannot, with what to do."""
    return answered(lambda asked: check(*read_words(asked)), words)


def check(out: Path, stages: Sequence[Stage]) -> int:
    """Writes README.md, every stage's log and tables."""
    found = card()
    if isinstance(found, str):
        complain(f"error: {NEEDED}; found: {found}")
        return 1
    machine, memory_gb = found
    ready_folder(out)
    rows: dict[str, Row] = {}
    with terminable():
        for stage in stages:
            say(f"{stage.name}: at most {stage.seconds // 60} minutes")
            rows[stage.name] = row = run_stage(stage, out.resolve() / stage.name, memory_gb)
            save(out, machine, rows)
            tell = complain if row.verdict == FAILED else say
            tell(f"{stage.name}: {row.verdict} ({row.seconds:.0f} s) {row.note}".rstrip())
    say(f"send all of {out}: tar czf gpu_check.tgz {shlex.quote(str(out))}")
    return int(any(row.verdict == FAILED for row in rows.values()))


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


def card() -> tuple[dict[str, str], float] | str:
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


def run_stage(stage: Stage, folder: Path, memory_gb: float) -> Row:
    """Runs its command and reads its figures."""
    if memory_gb < stage.memory_gb:
        note = f"needs {stage.memory_gb:g} GB on the card, this one has {memory_gb:.0f}"
        return Row(SKIPPED, 0.0, note)
    folder.mkdir(parents=True, exist_ok=True)
    began = time.perf_counter()
    words = [word.replace(OUT, str(folder)) for word in stage.command]
    note, figures = _trouble(words, folder / LOG, stage.seconds), ()
    if not note:
        try:
            figures = tuple(_figures(stage, folder))
        except (FolderError, OSError, LookupError, ValueError) as error:
            note = f"left no figures: {error}"
    return Row(FAILED if note else PASSED, time.perf_counter() - began, note, figures)


def _figures(stage: Stage, folder: Path) -> list[str]:
    """Raises FolderError, LookupError or ValueError where one is not there."""
    if not stage.figures:  # pytest ends well too where all tests are skipped
        log = (folder / LOG).read_text(encoding="utf-8", errors="replace")
        return [re.findall(r"[1-9]\d* passed", log)[-1]]
    found = []
    for table, decoder, column in stage.figures:
        rows = read_table(folder / "run" / f"{table}.csv", Form(("decoder", column)))
        value = float(dict(zip(rows["decoder"], rows[column], strict=True))[decoder])
        found.append(f"{decoder} {column} {value:.3g}")
    return found


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


def save(out: Path, machine: dict[str, str], rows: dict[str, Row]) -> None:
    """README.md, for people."""
    headings = ("stage", "verdict", "s", "figures", "note")
    cells = [
        (name, row.verdict, f"{row.seconds:.0f}", ", ".join(row.figures), row.note)
        for name, row in rows.items()
    ]
    about = "\n".join(f"* {name}: {value}" for name, value in machine.items())
    table = markdown(of_cells(headings, cells))
    write_text(out / "README.md", f"# GPU check\n\n{about}\n\n{table}\n")


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
