"""`python -m bench gpu-check [out=DIR] [stages=a,b]`: runs the stages that have not passed yet."""

from __future__ import annotations

import json
import os
import shlex
import signal
import subprocess
import time
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from bench.console import complain, say, terminable
from bench.errors import ConfigError, FolderError, unknown
from bench.gpu_check.stages import LOG, OUT, SECONDS, STAGES, Stage
from bench.os_errors import ready_folder
from bench.records.schema import write_text

FOLDER, VERDICTS = Path("results/gpu_check"), "verdicts.json"
ROOT = Path(__file__).resolve().parents[2]
PASSED, OFF, FAILED, SKIPPED = "passed", "passed, not as expected", "failed", "skipped"
NEEDED = "gpu-check needs an NVIDIA card of compute capability 8.0 (Ampere) or newer with 8 GB"
Row = dict[str, Any]  # of a stage: verdict, seconds, note, and figures: name -> value, expected


def cmd_gpu_check(words: Sequence[str]) -> int:
    """Runs the stages into one folder. 1 where one failed, or where there is no card."""
    out, stages = read_words(words)
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
    given = {"out": str(FOLDER), "stages": ",".join(stage.name for stage in STAGES)}
    known = given["stages"].split(",")
    for word in words:
        name, _, value = word.partition("=")
        if name not in given or not value:
            raise ConfigError(f"gpu-check takes out=DIR and stages=NAME,NAME; found {word!r}")
        given[name] = value
    wanted = given["stages"].strip("[]").split(",")
    for wrong in set(wanted) - set(known):
        raise ConfigError(unknown("stage", wrong, known))
    return Path(given["out"]).expanduser(), [stage for stage in STAGES if stage.name in wanted]


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
        except (OSError, LookupError, ValueError):
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
    lines = ["# GPU check", "", *(f"* {name}: {value}" for name, value in machine.items())]
    lines += ["", "| stage | verdict | s | here (expected of an H200) | note |", "|:--" * 5 + "|"]
    for name, row in rows.items():
        read = (f"{k} {v['value']:.3g} ({v['expected']})" for k, v in row["figures"].items())
        cells = (
            name,
            row["verdict"],
            row["seconds"],
            ", ".join(read),
            row["note"].replace("|", "\\|"),
        )
        lines.append(f"| {' | '.join(map(str, cells))} |")
    write_text(out / "README.md", "\n".join([*lines, ""]))
