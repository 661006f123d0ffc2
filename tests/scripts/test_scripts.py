"""The scripts: stages of `gpu_check.sh` by a stand-in of Python, and what its page promises; the
trials and the rates of a step, on the processor."""

import os
import re
import runpy
import shlex
import subprocess
import sys
from pathlib import Path

import pandas as pd
import pytest
import torch

from bench.config.compose import compose_study
from decoders.execution.compiled import Compiled
from decoders.execution.cpu.library import missing
from tests.bench.fakes import SEARCHPATH

ROOT = Path(__file__).resolve().parents[2]
SCRIPT, PAGE = ROOT / "scripts" / "gpu_check.sh", ROOT / "docs" / "gpu.md"
CARD = """#!/usr/bin/env bash
case "$*" in
    *total_memory*) {card} ;;
    *"-m pytest"*) echo "5 skipped, 0 passed in 1s" ;;
    *study=gpu_costs*) echo "a step" ;;
    *study=main*) echo "half a page"; sleep 60 ;;
esac
"""


def check(folder: Path, card: str, *stages: str, script: Path = SCRIPT) -> tuple[int, str]:
    """Exit status and output of the script with a stand-in of Python that says this of a card."""
    python = folder / "python"
    python.write_text(CARD.replace("{card}", card))
    python.chmod(0o755)
    command, home = [script, folder / "out", *stages], {**os.environ, "PYTHON": str(python)}
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, env=home)
    return done.returncode, done.stdout + done.stderr


def test_each_stage_is_by_itself(tmp_path):
    status, shown = check(tmp_path, "echo 16", "costs", "costs_7b", "tests")
    assert status == 1
    assert "costs_ar: passed" in shown and "tests: failed: no test ran" in shown
    assert "costs_7b_ar: skipped: needs 30 GB on the card, this one has 16" in shown
    assert f"tar czf gpu_check.tgz {tmp_path}/out" in shown.splitlines()[-1]
    assert (tmp_path / "out" / "costs_sjd" / "log.txt").read_text() == "a step\n"
    assert check(tmp_path, "echo 16", "costs_ar")[0] == 0


def test_a_stage_that_hangs_is_stopped_and_a_missing_card_is_said(tmp_path):
    quick = tmp_path / "scripts" / "gpu_check.sh"
    quick.parent.mkdir()
    quick.write_text(SCRIPT.read_text().replace("stage main main 18 ", "stage main main 0.02 "))
    quick.chmod(0o755)
    status, shown = check(tmp_path, "echo 16", "main", script=quick)
    assert status == 1 and "main: failed or stopped after 0.02 minutes: half a page" in shown
    status, shown = check(tmp_path, "echo 'sees no card' >&2; exit 1")
    assert status == 1 and "sees no card" in shown and "compute capability 8.0" in shown


@pytest.mark.parametrize("way", ["compiled", "eager"])
def test_a_stage_whose_steps_run_eagerly_fails(way, tmp_path):
    """As without Python's headers, where every step works and none is what the stage is for."""
    run = tmp_path / "out" / "costs_ar" / "run"
    run.mkdir(parents=True)
    row = {"decoder": "ar", "protocol": "latency", "status": "ok", "seconds_total": 0.4}
    pd.DataFrame([row | {"path": f"forward={way}"}]).to_parquet(run / "records.parquet")
    line = {"decoder": "ar", "step_ms": 1.41, "step_over_floor": 3.9}
    pd.DataFrame([line]).to_csv(run / "roofline.csv", index=False)
    card = f'echo 16 ;; *records.parquet*) exec {shlex.quote(sys.executable)} "$@"'
    status, shown = check(tmp_path, card, "costs_ar")
    passes = way == "compiled"
    assert (status == 0) == passes
    assert ("step 1.41 ms, 3.9 floors, 0.400 s/image" in shown) == passes
    assert ("failed: steps ran eagerly: forward=eager" in shown) != passes


def stages() -> list[tuple[str, int, list[str]]]:
    """Group, minutes and command of each stage of the script."""
    text = SCRIPT.read_text()
    lines = re.findall(r"^stage (\w+) \w+ (\d+) \d+ (.*)$", text, re.MULTILINE)
    every = [(group, int(minutes), shlex.split(command)) for group, minutes, command in lines]
    costs = re.findall(r'^costs (\w+) (\d+) \d+ "([^"]+)"(.*)$', text, re.MULTILINE)
    for group, minutes, names, words in costs:
        for name in names.split():
            command = ["bench", "study=gpu_costs", f"decoders=[{name}]", *words.split()]
            every.append((group, int(minutes), command))
    return every


def test_the_page_promises_what_the_stages_run():
    page, total = PAGE.read_text(), 0
    for group, minutes, command in stages():
        (line,) = (line for line in page.splitlines() if line.startswith(f"| `{group}` |"))
        assert line.endswith(f"| {minutes} min |")
        total += minutes
        if group == "tests":
            assert [*(ROOT / command[-1]).glob("test_gpu_*.py")]
        else:
            assert compose_study(["backend=cuda_graph", *command[1:]]).latency.prompts
    assert page.startswith("# The first hour on a GPU") and total <= 60
    assert f"for {total} minutes at most" in page


# ---- on the processor, with a model of a few codes ----------------------------------------------

LACKING = "ftfy open_clip playwright timm torch_fidelity torchvision"
BARE = f"""import sys
sys.modules.update(dict.fromkeys("{LACKING}".split()))
from bench.__main__ import main
sys.exit(main(sys.argv[1:]))"""
LATENCY = [f"latency.{word}" for word in ("prompts=2", "blocks=1", "warmup_max=1", "busy=1")]
SMALL = ["backend=cpu_torch", "backend.threads=1", "model=random24", *LATENCY, SEARCHPATH]


@pytest.mark.slow
def test_a_bare_machine_leaves_the_figures_of_the_costs(tmp_path):
    """Without what pages and metrics are made of."""
    overrides = "['acceptance=synthetic', 'acceptance.mal=2']"
    paper = f"{{decoder: lantern_pp, name: paper, overrides: {overrides}}}"
    words = [f"run_dir={tmp_path}", f"decoders=[ar,sjd,{paper}]", *SMALL]
    command = [sys.executable, "-c", BARE, "run", "study=gpu_costs", *words]
    home = {**os.environ, "PYTHONPATH": str(ROOT)}
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, env=home)
    assert done.returncode == 0, done.stderr
    lines = (tmp_path / "roofline.csv").read_text().splitlines()
    assert {line.partition(",")[0] for line in lines[1:]} >= {"ar", "sjd", "paper"}
    assert (tmp_path / "report" / "table.txt").exists()
    assert (tmp_path / "report" / "index.html").exists()


def run_here(monkeypatch: pytest.MonkeyPatch, name: str, *words: str) -> None:
    """Runs a script in this process."""
    monkeypatch.setattr(sys, "argv", [name, *words])
    runpy.run_path(str(ROOT / "scripts" / name), run_name="__main__")


def test_each_trial_leaves_its_time_and_its_kernels(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(Compiled, "compile_graph", lambda self, graph, *_: graph)
    words = ("backend=cpu", "backend.threads=1", "model=random24", "prompts=fake", SEARCHPATH)
    run_here(monkeypatch, "gpu_trials.py", "trials=base,rows", f"out={tmp_path}", *words)
    shown = capsys.readouterr().out
    names = [line.split()[0] for line in shown.splitlines() if " ms a step" in line]
    assert names == ["base", "rows"] and shown.count("forward compiled") == 2
    assert {path.name for path in tmp_path.iterdir()} == {"base.txt", "rows.txt"}


def test_an_unknown_trial_is_refused(monkeypatch):
    with pytest.raises(SystemExit, match=r"unknown trials \['fast'\]; known: base, pdl"):
        run_here(monkeypatch, "gpu_trials.py", "trials=base,fast")


def test_few_rows_are_multiplied_as_by_a_matrix(monkeypatch):
    monkeypatch.syspath_prepend(str(ROOT / "scripts"))
    from gpu_trials import few_rows

    x, weight = torch.randn(2, 1, 24), torch.randn(40, 24)
    torch.testing.assert_close(few_rows(x, weight), x @ weight.T)


@pytest.mark.skipif(missing() is not None, reason="the CPU kernel cannot be built here")
def test_every_forward_is_timed_against_its_floor(monkeypatch, capsys):
    run_here(monkeypatch, "kernel_rates.py", "repeats=2", "backend.threads=1")
    machine, heading, *lines = capsys.readouterr().out.splitlines()
    assert "GB/s" in machine and "Gflop/s" in machine
    columns = heading.replace("AR steps", "AR_steps").replace("% rate", "share").split()
    for line in lines:
        row = dict(zip(columns, map(float, line.split()), strict=True))
        assert row["rows"] == 2 * row["codes"], "guidance: two rows for each code"
        assert row["layers"] >= row["best"] > 0 and row["floor"] > 0 and row["products"] > 0
    assert [line.split()[0] for line in lines] == ["1", "2", "3", "4", "5", "6", "8", "9", "12"]
