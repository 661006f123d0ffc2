"""The script that shows how near the CPU kernel comes to a processor's limits."""

import subprocess
import sys
from pathlib import Path

import pytest

from decoders.execution.cpu.library import missing

ROOT = Path(__file__).parents[2]


@pytest.mark.skipif(missing() is not None, reason="the CPU kernel cannot be built here")
def test_every_forward_is_timed_against_its_floor():
    words = [sys.executable, "scripts/kernel_rates.py", "repeats=2"]
    done = subprocess.run(words, cwd=ROOT, capture_output=True, text=True, check=True)
    machine, heading, *lines = done.stdout.splitlines()
    assert "GB/s" in machine and "Gflop/s" in machine
    columns = heading.replace("AR steps", "AR_steps").replace("% rate", "share").split()
    for line in lines:
        row = dict(zip(columns, map(float, line.split()), strict=True))
        assert row["rows"] == 2 * row["codes"], "guidance: two rows for each code"
        assert row["layers"] >= row["best"] > 0 and row["floor"] > 0 and row["products"] > 0
    assert [line.split()[0] for line in lines] == ["1", "2", "3", "4", "5", "6", "8", "9", "12"]
