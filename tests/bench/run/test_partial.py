"""An interrupted run says how far it came, and what is there can be looked at."""

import os
import signal
from contextlib import suppress
from pathlib import Path

import pandas as pd
import pytest

from bench.__main__ import main
from bench.analyse.analyse import load
from bench.errors import Interrupted
from bench.report import texts
from bench.report.texts import summarise
from bench.run.study import explain_interrupts, run_study
from tests.bench import fakes


@pytest.fixture
def stopped(tmp_path: Path):
    """Words of a study that is interrupted at its fourth prompt as long as the flag is there."""
    flag = tmp_path / "interrupt"
    flag.touch()

    def words() -> list[str]:
        mine = "{decoder: fake_spec, overrides: ['loop.kill_at=number 3']}"
        return [
            fakes.SEARCHPATH, "study=fake", f"run_dir={tmp_path / 'run'}",
            f"decoders=[fake_ar,{mine}]", f"loop.flag={flag}", "latency.blocks=1",
        ]  # fmt: skip

    return words, flag, tmp_path / "run"


def test_an_interrupted_run_says_how_far_it_came_and_a_table_can_be_had(
    stopped, capsys, without_plots
):
    words, flag, folder = stopped
    assert main(["run", *words()]) == 130
    said = capsys.readouterr().err
    done = len(fakes.recorded(folder))
    assert 0 < done < 26
    assert f"interrupted: {done} of 26 images are recorded in {folder}" in said
    assert "same command resumes" in said
    assert f"table of what is there: python -m bench report {folder}\n" in said

    for where in (words(), [str(folder)]):
        assert main(["report", *where]) == 0
        assert f"fake@1 (partial: {done} of 26 images)" in capsys.readouterr().out
    for name in ("table.txt", "table.md", "table.tex", "index.html"):
        assert "partial: " in (folder / "report" / name).read_text().replace("\\", "")
    assert not (folder / "records.parquet").exists(), "nothing takes it for a finished run"
    assert not (folder / "summary.csv").exists()

    flag.unlink()
    assert main(["run", *words()]) == 0
    assert not (folder / "partial").exists()
    assert "partial" not in texts.plain(summarise(load(folder)))
    assert set(pd.read_csv(folder / "summary.csv").status) == {"ok"}


@pytest.mark.parametrize("raises", [False, True], ids=["swallowed", "as another error"])
def test_an_interrupt_that_meets_a_callback_of_torch_stops_the_run(fake_study, monkeypatch, raises):
    """There Python drops the exception, or torch makes another of it: no image may fail by it."""
    plain = fakes.FakeLoop.generate

    def generate(loop, *args, **options):
        if len(fakes.CALLS) == 9:
            with suppress(KeyboardInterrupt):
                signal.raise_signal(signal.SIGTERM)
            if raises:
                raise RuntimeError("an error in a callback")
        return plain(loop, *args, **options)

    monkeypatch.setattr(fakes.FakeLoop, "generate", generate)
    config = fake_study()
    with pytest.raises(Interrupted, match="are recorded in"), explain_interrupts(config):
        run_study(config)
    rows = fakes.recorded(Path(config.run_dir))
    assert 0 < len(rows) < 26 and {row["status"] for row in rows} == {"ok"}


def test_sigterm_interrupts_like_ctrl_c(fake_study):
    before = signal.getsignal(signal.SIGTERM)
    with (
        pytest.raises(Interrupted, match="before the first image"),
        explain_interrupts(fake_study()),
    ):
        os.kill(os.getpid(), signal.SIGTERM)
        signal.pause()
    assert signal.getsignal(signal.SIGTERM) is before
