"""Other programs on the machine while a study is timed, by a made clock and a made machine."""

import logging
from collections.abc import Callable
from dataclasses import dataclass

import pandas as pd
import pytest

from bench.__main__ import main
from bench.analyse.analyse import load
from bench.measure import meter
from bench.measure.meter import Reading
from bench.report import texts
from bench.report.texts import summarise
from bench.run.session import Session
from bench.run.study import run_study
from tests.bench import fakes

FEW = ("quality.images=0", "decoders=[fake_ar,fake_spec]", "latency.busy=0.1")


@dataclass
class Machine:
    """Two cores. share: what others take of them at an hour; every look at the machine takes a
    second."""

    share: Callable[[float], float]
    at: float = 0.0
    busy: float = 0.0
    slept: float = 0.0

    def passes(self, seconds: float) -> None:
        self.busy += 2 * seconds * self.share(self.at)
        self.at += seconds

    def sleep(self, seconds: float) -> None:
        self.slept += seconds
        self.passes(seconds)

    def monotonic(self) -> float:
        return self.at

    def read(self) -> Reading:
        """Between two of these, before and after the decoding, lies a second."""
        self.passes(1.0)
        return Reading(self.at, self.at, self.at + self.busy, 0.0, 2)


@pytest.fixture
def machine(monkeypatch: pytest.MonkeyPatch) -> Callable[[Callable[[float], float]], Machine]:
    def made(share: Callable[[float], float]) -> Machine:
        one = Machine(share)
        monkeypatch.setattr(meter, "read", one.read)
        monkeypatch.setattr(meter, "time", one)
        return one

    return made


def timed(rows: pd.DataFrame) -> pd.DataFrame:
    return rows[rows.protocol == "latency"]


def test_a_quiet_machine_is_not_waited_for(fake_study, machine, caplog):
    one = machine(lambda _: 0.05)
    rows = timed(run_study(fake_study(*FEW)).rows)
    assert not rows.disturbed.any() and one.slept == 0 and "busy" not in caplog.text
    assert rows.cpu_others.to_numpy() == pytest.approx(0.05)


def test_an_hour_with_neighbours_is_said_waited_for_and_timed_again(fake_study, machine, caplog):
    one = machine(lambda at: 0.48 if 20 < at < 40 else 0.0)
    rows = timed(run_study(fake_study(*FEW, "latency.prompts=8", "latency.warmup_max=1")).rows)
    said = [r.getMessage() for r in caplog.records if r.levelno == logging.WARNING]
    (busy,) = [text for text in said if "the machine is busy (cores 48 % taken" in text]
    assert "stop other programs" in busy and "another name= and latency.busy=1" in busy
    assert 5 < one.slept < 60, "it waited until they were gone"
    assert len(rows) == 16 and not rows.disturbed.any(), "the image was timed again"


def test_a_machine_that_stays_busy_is_waited_for_once_and_gives_no_figure(
    fake_study, machine, capsys, tmp_path
):
    one = machine(lambda _: 0.48)
    words = [fakes.SEARCHPATH, "study=fake", f"run_dir={tmp_path}", *FEW]
    assert main(["run", *words]) == 0
    assert one.slept <= 60, "a minute at the first image, and not for each of the others"
    shown = " ".join(texts.plain(summarise(load(tmp_path))).split())
    assert "(1) not measured: the machine was busy (cores 48 % taken by others)." in shown
    assert "8 of 8 timings were disturbed and do not count." in shown
    summary = pd.read_csv(tmp_path / "summary.csv").set_index("decoder")
    assert summary[["speedup", "latency_mean_s", "latency_p50_s"]].isna().all(axis=None)
    assert (summary.mal > 0).all(), "codes per forward do not depend on the hour"
    assert set(pd.read_csv(tmp_path / "fairness.csv").verdict) == {"not measured"}
    capsys.readouterr()
    assert main(["diff", str(tmp_path), "decoders=fake_ar,fake_spec"]) == 0
    refused = capsys.readouterr().out
    assert "no speed of fake_spec was compared: times in A do not count, as the" in refused
    assert "images per second" not in refused


def test_the_running_table_says_why_no_time_counts_and_what_to_do(fake_study, machine, capsys):
    machine(lambda _: 0.48)
    run_study(fake_study(*FEW))
    shown = capsys.readouterr().err
    assert "100 % of the timings were disturbed and do not count (cores 48 % taken by" in shown
    assert "another name= and latency.busy=1" in shown and "nan s/image" not in shown
    assert "fake_ar                  no time that counts yet" in shown


def test_one_decoder_that_others_disturb_is_enough_for_the_advice(fake_study):
    """Of its four timings two do not count, a fourth of all."""
    study = run_study(fake_study("quality.images=0", "decoders=[fake_ar,fake_spec]"))
    for row in [row for row in study.folder.rows.values() if row["decoder"] == "fake_ar"][:2]:
        row["disturbed"] = True
    said = Session(study).speedups(block=0)
    assert "25 % of the timings were disturbed" in said[1] and "stop other programs" in said[1]
    assert said[2].endswith("no time that counts yet")


def test_a_load_that_is_not_known_is_no_number():
    assert "nan" not in meter.taken(float("nan")) and "not known" in meter.taken(float("nan"))
