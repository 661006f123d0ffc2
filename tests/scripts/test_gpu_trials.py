"""The trials of an AR step, on the processor as a stand-in for a card."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from tests.bench.fakes import SEARCHPATH

ROOT = Path(__file__).parents[2]
HOME = os.environ | {"PYTHONPATH": str(ROOT)}
SMALL = ("backend=cpu", "backend.threads=1", "model=random24", "prompts=fake", SEARCHPATH)


def tried(*words: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "scripts/gpu_trials.py", *words]
    return subprocess.run(command, cwd=ROOT, capture_output=True, text=True, env=HOME)


@pytest.mark.slow
def test_each_trial_leaves_its_time_and_its_kernels(tmp_path):
    done = tried("trials=base,rows,pdl", f"out={tmp_path}", *SMALL)
    assert done.returncode == 0, done.stderr
    names = [line.split()[0] for line in done.stdout.splitlines() if " ms a step" in line]
    assert names == ["base", "rows", "pdl"]
    assert done.stdout.count("ms a step") == 3 and done.stdout.count("forward compiled") == 3
    assert {path.name for path in tmp_path.iterdir()} == {"base.txt", "rows.txt", "pdl.txt"}


def test_an_unknown_trial_is_refused():
    done = tried("trials=base,fast")
    assert done.returncode == 1 and "unknown trials ['fast']; known: base, pdl" in done.stderr


def test_few_rows_are_multiplied_as_by_a_matrix(monkeypatch):
    monkeypatch.syspath_prepend(str(ROOT / "scripts"))
    from gpu_trials import few_rows

    x, weight = torch.randn(2, 1, 24), torch.randn(40, 24)
    torch.testing.assert_close(few_rows(x, weight), x @ weight.T)
    assert few_rows(x.expand(2, 5, 24), weight).shape == (2, 5, 40)
