"""OpenMP may give fewer threads than torch asks for, by variables of a batch system. Each case has
a process of its own, as OpenMP reads them once."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

import bench

PROGRAM = """
import torch
from bench.__main__ import run_command
from bench.config.schema import BackendConfig
from bench.measure.device import prepare
from bench.measure.device import given_threads, use_given_threads
from bench.measure import device
device.available_cores = lambda: 8

def command(arguments):
    prepare(BackendConfig("cpu_torch", "cpu", "float32", threads=int(arguments[0])))
    print("threads", torch.get_num_threads(), given_threads(2))
    return 0

print("status", run_command(command, ["2"]), run_command(command, ["1"]))
torch.set_num_threads(2)
use_given_threads()
print("used", torch.get_num_threads())
one = torch.ones(300, 700)
print("right", bool((one @ one.T == 700).all()))
"""


@pytest.mark.parametrize(
    ("variables", "given"),
    [
        ("OMP_THREAD_LIMIT=1", 1),
        ("OMP_MAX_ACTIVE_LEVELS=0", 1),
        ("OMP_THREAD_LIMIT=64 OMP_DYNAMIC=true", 2),
    ],
)
def test_threads_that_openmp_does_not_give_are_not_counted_on(variables, given):
    env = os.environ | {"PYTHONPATH": str(Path(bench.__file__).parents[1])}
    env |= dict(word.split("=") for word in variables.split())
    env.pop("OMP_NUM_THREADS", None)
    words = [sys.executable, "-c", PROGRAM]
    done = subprocess.run(words, env=env, capture_output=True, text=True, check=True)
    status = 0 if given == 2 else 2
    for line in (f"status {status} 0", f"threads 1 {given}", f"used {given}", "right True"):
        assert line in done.stdout.splitlines(), done.stdout + done.stderr
    if given < 2:
        for words in (f"by {variables}", "Set backend.threads=1", "gives 1 of 2 threads"):
            assert words in done.stderr
