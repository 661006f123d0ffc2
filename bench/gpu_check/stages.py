"""The stages: what each runs, and what an H200 is expected to show.

Expectations are estimates from the bytes and operations of a step and from counted launches, made
before any card ran this. Those in floors hold for other cards too: a floor is the card's own. A
figure without an estimate is shown alone.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from bench.gpu_check.run import OUT
from bench.gpu_check.stage import Expected, Stage

GRAPH = "backend=cuda_graph"
XL, ANOLE = "model=llamagen_xl_256_random", "model=anole_7b_random"
VERIFY = "forward over 57 nodes + root"  # as `bench steps` calls it
REPLAYED = "lantern_pp_replayed"
KERNEL_TESTS = ("test_gpu_machine.py", "test_gpu_kernels.py")
GRAPH_TESTS = ("test_gpu_graphs.py", "test_gpu_recorded.py", "test_gpu_measuring.py")
COMPILING = 1200  # seconds: every decoder of the tests is compiled
MEMORY_7B = 30.0  # GB: 14 of weights, a drafter, caches, and what a graph holds


def bench(*words: str) -> list[str]:
    return [sys.executable, "-m", "bench", *words]


def tests(file: str) -> list[str]:
    report = f"--junitxml={OUT}/{file}.xml"
    return [sys.executable, "-m", "pytest", "-q", "-x", "-n", "0", report, f"tests/gpu/{file}"]


def ran(file: str) -> Expected:
    """How many tests of a file ran: pytest counts a file whose tests are all skipped as passed."""

    def read(folder: Path) -> float:
        from xml.etree import ElementTree

        found = ElementTree.parse(folder / f"{file}.xml").getroot()
        suites = [found] if found.tag == "testsuite" else list(found)
        count = sum(int(s.get("tests", 0)) - int(s.get("skipped", 0)) for s in suites)
        return float(count) if count > 0 else math.nan

    return Expected(f"tests of {file} that ran", "", read)


def of_step(run: str, step: str, column: str) -> Callable[[Path], float]:
    """A cell of a run's steps.csv. Raises LookupError where the step is not there."""

    def read(folder: Path) -> float:
        import pandas as pd

        table: Any = pd.read_csv(folder / run / "steps.csv").set_index("step")
        return float(table.at[step, column])

    return read


def of_decoder(run: str, decoder: str, column: str) -> Callable[[Path], float]:
    """A cell of a run's summary.csv. Raises LookupError where the decoder is not there."""

    def read(folder: Path) -> float:
        import pandas as pd

        table: Any = pd.read_csv(folder / run / "summary.csv").set_index("decoder")
        return float(table.at[decoder, column])

    return read


def _steps(run: str, model: str) -> list[str]:
    return bench("steps", "study=replay", GRAPH, model, f"run_dir={OUT}/{run}")


def _replay(run: str, model: str, *words: str) -> list[str]:
    return bench("run", "study=replay", GRAPH, model, f"run_dir={OUT}/{run}", *words)


KERNELS = Stage(
    "kernels",
    "Triton programs against tensor code, in every dtype",
    [tests(file) for file in KERNEL_TESTS],
    [ran(file) for file in KERNEL_TESTS],
    seconds=COMPILING,
)
GRAPHS = Stage(
    "graphs",
    "steps recorded as CUDA graphs: the same codes, nothing waits for the host",
    [tests(file) for file in GRAPH_TESTS],
    [ran(file) for file in GRAPH_TESTS],
    seconds=COMPILING,
)
COSTS = Stage(
    "costs",
    "an AR step and the verification of 57 nodes and a root at LlamaGen-XL's size",
    [_steps("xl", XL)],
    [
        Expected("AR step at XL", "ms", of_step("xl", "AR step", "ms"), 1.0, 1.7),
        Expected("floor of it", "ms", of_step("xl", "AR step", "floor_ms"), 0.33, 0.41),
        Expected("AR step at XL", "floors", of_step("xl", "AR step", "over_floor"), most=4.6),
        Expected("verify of 58 codes at XL", "ms", of_step("xl", VERIFY, "ms"), 1.35, 2.1),
    ],
)
COSTS_7B = Stage(
    "costs_7b",
    "the same at Anole-7B's size",
    [_steps("anole", ANOLE)],
    [
        Expected("AR step at 7B", "floors", of_step("anole", "AR step", "over_floor")),
        Expected(
            "verify of 58 codes at 7B", "AR steps", of_step("anole", VERIFY, "ar_steps"), most=1.5
        ),
    ],
    memory_gb=MEMORY_7B,
)
REPLAY = Stage(
    "replay",
    "LANTERN++ at 3.6 codes per forward beside AR at LlamaGen-XL's size",
    [_replay("xl", XL)],
    [
        Expected("codes per forward", "", of_decoder("xl", REPLAYED, "mal"), 3.4, 3.8),
        Expected("speed-up at XL", "x", of_decoder("xl", REPLAYED, "speedup"), least=1.2),
    ],
    seconds=900,
)
REPLAY_7B = Stage(
    "replay_7b",
    "the same at Anole-7B's size, in images of 16 x 16 codes",
    [_replay("anole", ANOLE, "model.grid=16", "latency.prompts=2")],
    [Expected("speed-up at 7B", "x", of_decoder("anole", REPLAYED, "speedup"), 2.1, 2.6)],
    seconds=900,
    memory_gb=MEMORY_7B,
)
SPEED = Stage(
    "speed",
    "study=speed on the embedded model, from prompts to the report",
    [bench("run", "study=speed", GRAPH, f"run_dir={OUT}/speed", "latency.prompts=4")],
    [
        Expected("s/image of AR", "s", of_decoder("speed", "ar", "latency_mean_s")),
        Expected(
            "codes per forward of LANTERN++", "", of_decoder("speed", "lantern_pp", "mal"), 1.5
        ),
    ],
    seconds=900,
)
PROFILE = Stage(
    "profile",
    "where a step's time goes: a trace for AR and for LANTERN++ replayed",
    [bench("profile", "study=replay", GRAPH, XL, f"run_dir={OUT}/profile")],
)
STAGES = (KERNELS, GRAPHS, COSTS, COSTS_7B, REPLAY, REPLAY_7B, SPEED, PROFILE)
