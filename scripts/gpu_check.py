"""`python -m scripts.gpu_check [out=DIR] [stages=a,b]`: the first half hour on a GPU, in stages
that have not passed yet. Each has a process and a verdict of its own, so that a card that is lost,
or a stage that fails, takes no other stage along.

What an H200 is expected to show are estimates from the bytes and operations of a step and from
counted launches. Those in floors hold for other cards too: a floor is the card's own.
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
from bench.config.words import given
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
VERIFY = "forward over 57 nodes + root"  # as `bench steps` calls it
REPLAYED = "lantern_pp_replayed"
XL, ANOLE = "model=llamagen_xl_256_random", "model=anole_7b_random"
MEMORY_7B = 30.0  # GB: 14 of weights, a drafter, caches, and what a graph holds
Row = dict[str, Any]  # of a stage: verdict, seconds, note, and figures: name -> value, expected


@dataclass(frozen=True)
class Figure:
    """A number that a stage leaves in a column of run/<table>.csv (no column: tests that passed),
    and between what an H200's should lie."""

    name: str
    row: str = ""  # a step of steps.csv, a decoder of summary.csv
    column: str = ""
    least: float = 1.0
    most: float = inf
    table: str = "steps"

    def read(self, folder: Path) -> float:
        """Raises FolderError, LookupError or ValueError where the number is not there."""
        if not self.column:  # pytest ends well too where all tests are skipped
            log = (folder / LOG).read_text(encoding="utf-8", errors="replace")
            return float(re.findall(r"(\d+) passed", log)[-1])
        key = "step" if self.table == "steps" else "decoder"
        table = read_table(folder / "run" / f"{self.table}.csv", Form((key, self.column)))
        return float(dict(zip(table[key], table[self.column], strict=True))[self.row])


@dataclass(frozen=True)
class Stage:
    """command: its arguments; OUT stands for the stage's folder. memory_gb: of the card, where the
    stage needs more than every card has."""

    name: str
    command: list[str]
    figures: tuple[Figure, ...] = ()
    memory_gb: float = 0.0


def bench(command: str, study: str, *words: str) -> list[str]:
    own = [f"study={study}", "backend=cuda_graph", f"run_dir={OUT}/run"]
    return [sys.executable, "-m", "bench", command, *own, *words]


def tests(chosen: str, *files: str) -> list[str]:
    """Names each test in the log as it ends, and stops in time where pytest-timeout is there. The
    project's own options need more plug-ins than a bare machine has."""
    limits = ("addopts=", "timeout=120", f"session_timeout={SECONDS - 60}")
    options = ["-v", "-rfE", "--tb=short", "--continue-on-collection-errors"]
    options += [word for limit in limits for word in ("-o", limit)]
    paths = [f"tests/gpu/test_gpu_{file}.py" for file in files]
    return [sys.executable, "-m", "pytest", *options, "-k", chosen, *paths]


# Three decoders are compiled, as five take too long; without peers, memory limits and the profile.
GRAPHS = "not (medusa or early_exit or libraries or static_cache or fit or command)"
SMALL = (
    'decoders=[ar,{decoder: eagle2, overrides: ["tree=dynamic_small"]},'
    '{decoder: lantern_pp, overrides: ["tree.choices=narrow_5", "acceptance.lam=100"]}]'
)
# fmt: off
STAGES = (
    Stage("costs", bench("steps", "replay", XL), (
        Figure("AR step at XL, ms", "AR step", "ms", 1.0, 1.7),
        Figure("floor of it, ms", "AR step", "floor_ms", 0.33, 0.41),
        Figure("AR step at XL, floors", "AR step", "over_floor", 1.0, 4.6),
        Figure("verify of 58 codes at XL, ms", VERIFY, "ms", 1.35, 2.1),
    )),
    Stage("replay", bench("run", "replay", XL), (
        Figure("codes per forward", REPLAYED, "mal", 3.4, 3.8, "summary"),
        Figure("speed-up at XL", REPLAYED, "speedup", 1.2, inf, "summary"),
    )),
    Stage("kernels", tests("test", "kernels"), (Figure("tests that passed"),)),
    Stage("graphs", tests(GRAPHS, "graphs", "measuring"), (Figure("tests that passed"),)),
    Stage("costs_7b", bench("steps", "replay", ANOLE), (
        Figure("AR step at 7B, floors", "AR step", "over_floor"),
        Figure("verify of 58 codes at 7B, AR steps", VERIFY, "ar_steps", 1.0, 1.5),
    ), MEMORY_7B),
    Stage("replay_7b", bench("run", "replay", ANOLE, "model.grid=16", "latency.prompts=2"), (
        Figure("speed-up at 7B", REPLAYED, "speedup", 2.1, 2.6, "summary"),
    ), MEMORY_7B),
    Stage("speed", bench("run", "speed", SMALL, "latency.prompts=4", "gate=false"), (
        Figure("s/image of AR", "ar", "latency_mean_s", 0.0, inf, "summary"),
        Figure("codes per forward of LANTERN++", "lantern_pp", "mal", 1.5, inf, "summary"),
    )),
    Stage("profile", bench("profile", "replay", XL)),
)
# fmt: on


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
            say(f"{stage.name}: at most {SECONDS // 60} minutes")
            rows[stage.name] = row = run_stage(stage, out.resolve() / stage.name, memory_gb)
            save(out, machine, rows)
            tell = complain if row["verdict"] == FAILED else say
            tell(f"{stage.name}: {row['verdict']} ({row['seconds']} s) {row['note']}".rstrip())
    say(f"send all of {out}: tar czf gpu_check.tgz {shlex.quote(str(out))}")
    return int(any(row["verdict"] == FAILED for row in rows.values()))


def read_words(words: Sequence[str]) -> tuple[Path, list[Stage]]:
    """The folder and the stages. Raises ConfigError on another word and an unknown stage."""
    found, every = given(words, ("out", "stages"), "gpu_check"), {s.name: s for s in STAGES}
    wanted = found.get("stages", ",".join(every)).strip("[]").split(",")
    for wrong in set(wanted) - set(every):
        raise ConfigError(unknown("stage", wrong, every))
    return Path(found.get("out", FOLDER)), [s for s in STAGES if s.name in wanted]


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
    note = _trouble([word.replace(OUT, str(folder)) for word in stage.command], folder / LOG)
    verdict, off = FAILED if note else PASSED, []
    for one in () if note else stage.figures:
        try:
            value = one.read(folder)
        except (FolderError, OSError, LookupError, ValueError):
            verdict, note = FAILED, f"left no figure {one.name!r}"
            continue
        figures[one.name] = {"value": value, "expected": f"{one.least:g} to {one.most:g}"}
        if not one.least <= value <= one.most:
            off.append(f"{one.name}: {value:.3g}")
    if off and verdict == PASSED:
        verdict, note = OFF, ", ".join(off)
    seconds = round(time.perf_counter() - began)
    return {"verdict": verdict, "seconds": seconds, "note": note, "figures": figures}


def _trouble(words: list[str], log: Path) -> str:
    """What went wrong with a command; "" for nothing. All that it started ends with it."""
    with log.open("a", encoding="utf-8") as file:
        file.write(f"$ {shlex.join(words)}\n")
        file.flush()
        process = subprocess.Popen(
            words, stdin=subprocess.DEVNULL, stdout=file, stderr=subprocess.STDOUT, cwd=ROOT,
            env={**os.environ, "PYTHONUNBUFFERED": "1"}, start_new_session=True,
        )  # fmt: skip
        try:
            status: int | str = process.wait(SECONDS)
        except subprocess.TimeoutExpired:
            status = f"stopped after {SECONDS} s"
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
    headings = ("stage", "verdict", "s", "here (expected of an H200)", "note")
    cells = []
    for name, row in rows.items():
        read = (f"{k} {v['value']:.3g} ({v['expected']})" for k, v in row["figures"].items())
        cells.append((name, row["verdict"], str(row["seconds"]), ", ".join(read), row["note"]))
    about = "\n".join(f"* {name}: {value}" for name, value in machine.items())
    table = markdown(of_cells(headings, cells))
    write_text(out / "README.md", f"# GPU check\n\n{about}\n\n{table}\n")


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
