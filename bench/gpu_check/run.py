"""Runs stages one after another and stops at the first failure; the folder is whole at any time."""

from __future__ import annotations

import math
import os
import subprocess
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from bench.gpu_check.stage import FAILED, OFF, PASSED, SKIPPED, Expected, Figure, Stage, Verdict

OUT = "OUT"  # in a command: the stage's folder
TAIL = 15  # lines of a log that a failure quotes


def run_stages(
    stages: Sequence[Stage],
    out: Path,
    memory_gb: float,
    done: Callable[[list[Verdict]], None],
    root: Path,
) -> list[Verdict]:
    """The verdict of every stage. out: the folder; each stage has one of its own inside. memory_gb:
    of the card. done: told after every stage. root: where the commands run."""
    verdicts: list[Verdict] = []
    for number, stage in enumerate(stages, 1):
        stopped = next((v.stage for v in verdicts if v.stops), None)
        if stopped is not None:
            verdicts.append(Verdict(stage.name, SKIPPED, note=f"{stopped} failed"))
        elif memory_gb < stage.memory_gb:
            note = f"needs {stage.memory_gb:g} GB on the card, this one has {memory_gb:.0f}"
            verdicts.append(Verdict(stage.name, SKIPPED, note=note))
        else:
            verdicts.append(run_stage(stage, out / f"{number}_{stage.name}", root))
        done(verdicts)
    return verdicts


def run_stage(stage: Stage, folder: Path, root: Path) -> Verdict:
    """Its commands, with everything they print in log.txt, then its figures."""
    folder.mkdir(parents=True, exist_ok=True)
    log, began = folder / "log.txt", time.perf_counter()
    log.write_text("", encoding="utf-8")
    note = ""
    for words in stage.commands:
        note = _run([word.replace(OUT, str(folder)) for word in words], log, stage.seconds, root)
        if note:
            break
    figures = [] if note else [_figure(expected, folder) for expected in stage.figures]
    missing = [f.name for f in figures if math.isnan(f.value)]
    if missing:
        note = f"left no figure for {', '.join(missing)}"
    off = [f.name for f in figures if not f.fits]
    verdict = FAILED if note else OFF if off else PASSED
    found = Verdict(stage.name, verdict, time.perf_counter() - began, note, str(log), figures)
    return replace(found, note=f"not as expected: {', '.join(off)}") if verdict == OFF else found


def _run(words: list[str], log: Path, seconds: int, root: Path) -> str:
    """What went wrong with a command; "" for nothing."""
    with log.open("a", encoding="utf-8") as file:
        file.write(f"$ {' '.join(words)}\n")
        file.flush()
        try:
            code = subprocess.run(
                words, stdout=file, stderr=subprocess.STDOUT, cwd=root, timeout=seconds,
                check=False, env=environment(os.environ, root),
            ).returncode  # fmt: skip
        except subprocess.TimeoutExpired:
            return f"took longer than {seconds} s: {' '.join(words)}"
        except OSError as error:
            return f"could not be started: {error}"
    if code == 0:
        return ""
    return f"status {code} of: {' '.join(words)}\n{_tail(log)}"


def environment(now: Mapping[str, str], root: Path) -> dict[str, str]:
    """The user's own, and this checkout in front of any other that is installed."""
    paths = [str(root), *filter(None, [now.get("PYTHONPATH")])]
    return {**now, "PYTHONPATH": os.pathsep.join(paths)}


def _tail(log: Path) -> str:
    def last() -> Iterator[str]:
        lines = log.read_text(encoding="utf-8", errors="replace").splitlines()
        yield from (f"  | {line}" for line in lines[-TAIL:])

    return "\n".join(last())


def _figure(expected: Expected, folder: Path) -> Figure:
    """NaN where the stage's files do not have it."""
    try:
        value = float(expected.read(folder))
    except (OSError, LookupError, ValueError):
        value = math.nan
    fits = not math.isnan(value) and expected.fits(value)
    return Figure(expected.name, value, expected.unit, expected.bounds, fits)
