"""The stages: what each runs, and what an H200 is expected to show.

Expectations are estimates from the bytes and operations of a step and from counted launches, made
before any card ran this. Those in floors hold for other cards too: a floor is the card's own.
"""

from __future__ import annotations

import csv
import re
import sys
from dataclasses import dataclass
from math import inf
from pathlib import Path

OUT = "OUT"  # in a command: the stage's folder
LOG = "log.txt"  # in the stage's folder: all that its command prints
SECONDS = 480  # after which a stage is stopped
VERIFY = "forward over 57 nodes + root"  # as `bench steps` calls it
REPLAYED = "lantern_pp_replayed"
XL, ANOLE = "model=llamagen_xl_256_random", "model=anole_7b_random"
MEMORY_7B = 30.0  # GB: 14 of weights, a drafter, caches, and what a graph holds


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
        """Raises OSError, LookupError or ValueError where the number is not there."""
        if not self.column:  # pytest ends well too where all tests are skipped
            log = (folder / LOG).read_text(encoding="utf-8", errors="replace")
            return float(re.findall(r"(\d+) passed", log)[-1])
        with (folder / "run" / f"{self.table}.csv").open(encoding="utf-8", newline="") as file:
            key = "step" if self.table == "steps" else "decoder"
            return float({line[key]: line[self.column] for line in csv.DictReader(file)}[self.row])


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
    Stage("kernels", tests("test", "kernels", "machine"), (Figure("tests that passed"),)),
    Stage("graphs", tests(GRAPHS, "graphs", "recorded", "measuring"), (
        Figure("tests that passed"),
    )),
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
