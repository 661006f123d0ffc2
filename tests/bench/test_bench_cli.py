"""The command line: quick help, and errors that say what to do."""

from __future__ import annotations

import os
import resource
import subprocess
import sys
from pathlib import Path

import pytest

from bench.__main__ import main

AS_HERE = {**os.environ, "PYTHONPATH": str(Path(__file__).parents[2])}
HEAVY = ("torch", "hydra", "omegaconf", "pandas", "numpy", "pyarrow", "matplotlib")


def test_help_is_quick_and_imports_nothing_heavy():
    code = (
        "import sys; sys.argv = ['bench', '--help']\n"
        "from bench.__main__ import main\n"
        f"status = main(); print(status, [m for m in {HEAVY} if m in sys.modules])"
    )
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    asked = [sys.executable, "-c", code]
    done = subprocess.run(asked, env=AS_HERE, capture_output=True, text=True, check=True)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    # Processor time: what the wall clock says on an idle machine.
    assert after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime < 1.0
    assert done.stdout.splitlines()[-1] == "0 []"
    assert "run a study" in done.stdout


@pytest.mark.parametrize("words", [[], ["help"], ["-h"], ["--help"], ["-v", "--help"]])
def test_help_in_all_ways(words, capsys):
    assert main(words) == 0
    assert "commands:" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        (["rum"], "'run'"),
        (["run", "study=smoek"], "'smoke'"),
        (["run", "study=smoke", "latency.warmup=3"], "latency.warmup_max"),
        (["run", "prompts=file"], "prompts.path"),
        (["list", "decodr"], "'decoder'"),
        (["list", "acceptance=lantrn"], "'lantern'"),
        (["tiny", "drafer"], "'drafter'"),
    ],
)
def test_bad_requests_name_the_nearest_without_a_traceback(words, expected, capsys):
    assert main(words) == 2
    shown = capsys.readouterr().err
    assert shown.startswith("error: ") and expected in shown
    assert "Traceback" not in shown


def test_list_shows_options_with_what_they_are(capsys):
    assert main(["list", "decoders", "study"]) == 0
    shown = capsys.readouterr().out
    assert "lantern_pp" in shown and "2502.06352" in shown and "smoke" in shown
    assert main(["list", "settings"]) == 0
    assert "warmup_max" in capsys.readouterr().out
    assert main(["list", "settings=all"]) == 0
    assert "warmup_max" in capsys.readouterr().out
    assert main(["list", "acceptance=lantern_pp"]) == 0
    shown = capsys.readouterr().out
    assert "lam:" in shown and "delta" not in shown
