"""The run folder: what is refused, and that nothing is ever half written or lost."""

import dataclasses
import errno
import os
from pathlib import Path

import pytest

from bench.errors import FolderError, describe_os_error
from bench.run.study import run_study
from bench.store.facts import read_study
from decoders import cpu_info
from tests.bench import fakes


def contents(folder: Path) -> dict[str, bytes]:
    return {str(p.relative_to(folder)): p.read_bytes() for p in folder.rglob("*") if p.is_file()}


def test_another_configuration_is_refused_with_what_differs(fake_study, fake_run):
    config, _ = fake_run()
    before = contents(Path(config.run_dir))
    with pytest.raises(FolderError) as error:
        run_study(fake_study("latency.prompts=3", "acceptance.k=5"))
    message = str(error.value)
    assert "latency.prompts: 4 in the folder, 3 asked for" in message
    assert "acceptance.k (fake_spec): 4 in the folder, 5 asked for" in message
    assert "run_dir=..., or name=..." in message and f"delete {config.run_dir}" in message
    assert contents(Path(config.run_dir)) == before


CPUINFO = (
    "processor\t: {}\nvendor_id\t: AuthenticAMD\ncpu family\t: 26\nmodel\t\t: 2\nstepping\t: 1\n\n"
)


def test_another_machine_is_refused_also_one_whose_processor_has_the_same_name(
    fake_run, tmp_path, monkeypatch
):
    config, result = fake_run("decoders=[fake_ar]")
    assert read_study(result.path)["machine"].keys() >= {"cpu_vendor", "cpu_stepping"}
    before = contents(result.path)
    monkeypatch.setattr(cpu_info, "CPUINFO", tmp_path / "cpuinfo")
    cpu_info.CPUINFO.write_text(CPUINFO.format(0) + CPUINFO.format(1))
    assert cpu_info.processor() == {
        "cpu_vendor": "AuthenticAMD", "cpu_family": "26", "cpu_model": "2", "cpu_stepping": "1",
        "cpu_cores": "2",
    }  # fmt: skip
    with pytest.raises(FolderError, match=r"another machine.*cpu_family: .* there, 26 here"):
        run_study(dataclasses.replace(config, retry_failed=True))
    assert contents(result.path) == before


def test_a_full_disk_stops_with_advice(fake_study, monkeypatch):
    config, written = fake_study(), []
    real = os.fsync

    def full_after_five(file):
        written.append(file)
        if len(written) == 8:  # some of them are of study.json and pictures
            raise OSError(errno.ENOSPC, "No space left on device")
        real(file)

    monkeypatch.setattr(os, "fsync", full_after_five)
    with pytest.raises(OSError, match="No space left") as full:
        run_study(config)
    said = str(describe_os_error(full.value))
    assert said.startswith(config.run_dir) and "resumes" in said
    assert 0 < len(fakes.recorded(Path(config.run_dir))) < 36
