"""A report is written whatever the surroundings say of matplotlib's back-end."""

import os
import subprocess
import sys
from pathlib import Path

import bench
from tests.bench.report.synthetic import DECODERS, write_run


def test_a_notebook_s_backend_stops_no_report(tmp_path):
    run = write_run(tmp_path / "run", DECODERS[:2], prompts=1)
    env = os.environ | {"PYTHONPATH": str(Path(bench.__file__).parents[1])}
    env |= {"MPLBACKEND": "module://nowhere.backend_inline"}
    words = [sys.executable, "-m", "bench", "report", str(run)]
    done = subprocess.run(words, env=env, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert list((run / "report" / "plots").glob("*.png"))
