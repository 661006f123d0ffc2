"""Times, memory, warm-up and the state of the machine."""

import gc
import math
import mmap
import runpy
import shutil
import subprocess
import time
from itertools import takewhile
from types import SimpleNamespace

import pytest
import torch

from bench import version
from bench.config.schema import BackendConfig
from bench.errors import ConfigError
from bench.measure import device
from bench.measure.device import card_state, prepare, provenance
from bench.measure.meter import Meter
from bench.run.session import stable
from decoders import cpu_info


def test_a_call_is_timed_without_the_garbage_collector_and_a_failed_part_is_forgotten():
    meter = Meter(torch.device("cpu"))
    with meter.call():
        assert not gc.isenabled()
        with meter.time("nap"):
            time.sleep(0.02)
    assert 0.02 <= meter.seconds["nap"] < 0.5 and gc.isenabled()
    with pytest.raises(ValueError, match="x"), meter.call(), meter.time("failed"):
        raise ValueError("x")
    assert "failed" not in meter.seconds and gc.isenabled()


def test_peak_memory_sees_a_large_array_and_forgets_it_with_the_next_call():
    """The array is pages of its own, fresh from the kernel: an allocator may hand out memory that
    tests before this one have made resident, and give none of it back."""
    meter, peaks, own = Meter(torch.device("cpu")), [], mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS
    for size in (1, 100_000_000, 1):
        with meter.call(), mmap.mmap(-1, size, flags=own) as pages:
            torch.frombuffer(pages, dtype=torch.uint8).fill_(1)
        peaks.append(meter.peak_mb)
    if math.isnan(peaks[0]):
        pytest.skip("this kernel does not reset the high-water mark")
    before, during, after = peaks
    assert 90 < during - before < 150 and after - before < 50


@pytest.mark.parametrize("captured", [False, True])
def test_peak_memory_of_a_card_is_what_a_call_allocates_or_what_graphs_reserve(
    captured, monkeypatch
):
    """Counted as torch.cuda does, on a card that is not there."""
    held = {"allocated": 5e9, "most": 0.0}  # bytes
    answers = {
        "reset_peak_memory_stats": lambda _: held.update(most=held["allocated"]),
        "max_memory_allocated": lambda _: held["most"],
        "max_memory_reserved": lambda _: 9e9,
    }
    for name, answer in answers.items():
        monkeypatch.setattr(f"torch.cuda.{name}", answer)
    meter, peaks = Meter(torch.device("cuda"), captured=captured), []
    for size in (2e9, 1e9):
        with meter.call():
            held["most"] = max(held["most"], held["allocated"] + size)
        peaks.append(meter.peak_mb)
    assert peaks == ([9000.0, 9000.0] if captured else [7000.0, 6000.0])


@pytest.mark.parametrize(
    ("seconds", "runs"), [([1.0, 1.05, 9.0], 2), ([3.0, 2.0, 1.0, 1.0], 4), ([5.0], 2)]
)
def test_a_warm_up_ends_when_two_times_are_alike(seconds, runs):
    unstable = takewhile(lambda n: not stable(seconds[:n], 0.1), range(1, len(seconds) + 1))
    assert len([*unstable]) == runs - 1


@pytest.mark.parametrize("name", ["cuda", "cuda:0", "rocm", "mps", "gpuu", "cuda:", "cpu:1"])
@pytest.mark.parametrize("hip", [None, "7.0"], ids=["CUDA", "ROCm"])
def test_a_device_that_is_not_there_is_refused_with_what_to_do(name, hip, monkeypatch):
    """A build for ROCm calls its cards CUDA devices, on which nobody has tested this project."""
    monkeypatch.setattr(torch.version, "hip", hip)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: int(hip is not None))
    says = rf"'{name}' is no device that this project runs on"
    if name in ("cuda", "cuda:0"):
        says = rf"device={name} is not there: .* sees 0 CUDA devices\. Use backend=cpu, or install"
    with pytest.raises(ConfigError, match=says):
        prepare(BackendConfig(name, name, "float32", 1))


def test_what_a_processor_cannot_do_is_refused():
    with pytest.raises(ConfigError, match=r"needs backend\.device=cuda, found cpu"):
        BackendConfig("mine", "cpu", "float32", 1, "graph")
    with pytest.raises(ConfigError, match=r"may use \d+ cores.*Set backend\.threads="):
        prepare(BackendConfig("eager", "cpu", "float32", 4000))
    assert card_state(torch.device("cpu")) == {}


@pytest.mark.parametrize("name", device.BINDING)
def test_what_binds_threads_to_cores_is_named_where_it_leaves_too_few(name, monkeypatch):
    monkeypatch.setattr(device, "available_cores", lambda: 1)
    for other in device.BINDING:
        monkeypatch.delenv(other, raising=False)
    monkeypatch.setenv(name, "true")
    with pytest.raises(ConfigError, match=rf"{name}=true.* binds .* to 1 .*env .*-u {name}"):
        prepare(BackendConfig("cpu", "cpu", "float32", 2))
    assert prepare(BackendConfig("cpu", "cpu", "float32", 1)).type == "cpu"


@pytest.mark.parametrize(
    ("model", "flags", "name", "kinds"),
    [
        ("AMD EPYC", "fpu avx avx2", "AMD EPYC, AVX2", ["AVX2"]),
        (
            "AMD EPYC",
            "avx2 avx512f avx512_bf16",
            "AMD EPYC, AVX512-BF16",
            ["AVX512-BF16", "AVX-512", "AVX2"],
        ),
        ("old", "fpu sse2", "old", []),
    ],
)
def test_processors_of_one_name_are_told_apart(model, flags, name, kinds, tmp_path, monkeypatch):
    said = tmp_path / "cpuinfo"
    said.write_text(f"processor\t: 0\nmodel name\t: {model}\nflags\t\t: {flags}\n\n" * 2)
    monkeypatch.setattr(cpu_info, "CPUINFO", said)
    assert cpu_info.vectors() == kinds
    assert provenance(torch.device("cpu")).cpu == name


def test_a_processor_that_may_not_be_read_has_no_name(tmp_path, monkeypatch):
    monkeypatch.setattr(cpu_info, "CPUINFO", tmp_path)  # reading it is an error
    assert cpu_info.cpuinfo() == {} and cpu_info.vectors() == []
    assert provenance(torch.device("cpu")).cpu


def test_an_installation_inside_another_repository_has_no_commit(tmp_path, monkeypatch):
    """Records of an installation once carried the commit of the repository around it."""
    git = ["git", "-C", str(tmp_path), "-c", "user.name=a", "-c", "user.email=a@b"]
    subprocess.run([*git, "init", "-q"], check=True)
    subprocess.run([*git, "commit", "-q", "--allow-empty", "-m", "theirs"], check=True)
    installed = tmp_path / "lib" / "site-packages" / "bench" / "version.py"
    installed.parent.mkdir(parents=True)
    shutil.copyfile(version.__file__, installed)
    checkout = runpy.run_path(str(installed))["checkout"]
    assert checkout() == ("", False)
    monkeypatch.setenv("GIT_DIR", str(tmp_path / ".git"))
    assert checkout() == ("", False)
    monkeypatch.setattr(device, "checkout", checkout)
    assert provenance(torch.device("cpu")).git_commit == "not a checkout"
    installed.with_name("commit.txt").write_text("1a2b changed\n")  # by setup.py
    assert checkout() == ("1a2b", True)


def test_a_card_says_what_decides_its_times(monkeypatch, tmp_path) -> None:
    monkeypatch.setattr(torch.version, "cuda", "13.0")
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda _: SimpleNamespace(uuid="a"))
    monkeypatch.setenv("PATH", str(tmp_path))
    unknown = dict.fromkeys(device.CARD, "")
    assert card_state(torch.device("cuda")) == {"cuda": "13.0", **unknown}, "no nvidia-smi"
    tool = tmp_path / "nvidia-smi"
    tool.write_text('#!/bin/sh\n[ "$1" = --id=GPU-a ] && echo "570.1, 1980, [N/A]"\n')
    tool.chmod(0o755)
    found = card_state(torch.device("cuda"))
    assert tuple(found) == ("cuda", *device.CARD)
    assert (found["driver"], found["sm_clock_max_mhz"]) == ("570.1", "1980")
    assert found["power_limit_w"] == "[N/A]"


def test_a_commit_is_shortened_and_what_stands_in_its_place_is_not():
    assert version.short_commit("299e33e1" * 5) == "299e33e129"
    assert version.short_commit("not a checkout") == "not a checkout"
