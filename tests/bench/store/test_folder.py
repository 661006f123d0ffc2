"""The run folder: what is refused, and that nothing is ever half written or lost."""

import errno
import json
import os
from pathlib import Path

import pytest

from bench.errors import FolderError, describe_os_error
from bench.run.study import run_study
from decoders.api import DecoderError
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


def test_another_machine_is_refused(fake_run):
    config, _ = fake_run("decoders=[fake_ar]")
    study = Path(config.run_dir) / "study.json"
    machine = {"cpu": "another", "gpu": "", "torch": "0"}
    study.write_text(json.dumps({**json.loads(study.read_text()), "machine": machine}))
    before = contents(Path(config.run_dir))
    with pytest.raises(FolderError, match="cpu: another there, "):
        run_study(config)
    assert contents(Path(config.run_dir)) == before


def test_a_run_that_stopped_before_its_first_row_binds_nobody(fake_study):
    config = fake_study("acceptance.k=1000")
    with pytest.raises(DecoderError, match="k must be"):
        run_study(config)
    assert not Path(config.run_dir).exists()
    assert (run_study(fake_study()).rows.status == "ok").all()


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
