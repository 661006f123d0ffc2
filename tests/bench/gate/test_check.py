"""`python -m bench check` and the exactness column: verdicts beside what was expected."""

import csv

import pytest

from bench.__main__ import main
from bench.config.compose import compose_study
from bench.config.schema import DecoderEntry, DecoderVariant, SamplingConfig
from bench.gate import GateReport, RealModel
from bench.run.finish import DECODERS_OF_A_PROCESS, finish, reports
from bench.run.runner import run_study
from decoders.api import Sampling
from decoders.compose import DecoderSpec
from tests.bench.fakes import SEARCHPATH
from tests.exact.specs import AR

WORDS = [SEARCHPATH, "study=fake", "decoders=[fake_ar,fake_spec]"]


@pytest.fixture
def gate(monkeypatch):
    """A gate whose verdicts a test sets by decoder; an exception is raised instead."""
    says: dict[str, GateReport | Exception] = {}

    def check_decoder(spec, sampling, model):
        said = says[spec.name]
        if isinstance(said, Exception):
            raise said
        return said

    monkeypatch.setattr("bench.run.finish.check_decoder", check_decoder)
    says["fake_ar"] = GateReport("exact", 0.0, "equal")
    return says


@pytest.mark.parametrize(
    ("overrides", "expect"),
    [
        ([], "relaxed"),
        (["acceptance.lam=3"], "relaxed"),
        (["acceptance=exact"], None),
        (["acceptance=exact", "expect=exact"], "exact"),
    ],
)
def test_what_is_expected_of_a_rule_is_not_expected_of_another(overrides, expect):
    entry = f"{{decoder: lantern_pp, name: mine, overrides: {overrides}}}"
    (found,) = compose_study(["study=smoke", f"decoders=[{entry}]"]).decoders
    assert found.expect == expect


@pytest.mark.parametrize(
    ("said", "words", "status"),
    [
        (GateReport("exact", 0.0, ""), [], 0),
        (GateReport("relaxed", 0.1, ""), [], 0),
        (GateReport("broken", 0.4, "above its bound"), [], 1),
        (GateReport("broken", 0.4, "as published"), ["expect=broken"], 0),
        (GateReport("relaxed", 0.1, ""), ["expect=exact"], 1),
        (GateReport("relaxed", 0.1, ""), ["expect=broken"], 1),
        (RuntimeError("no small twin"), [], 1),
    ],
)
def test_the_status_says_whether_all_is_as_expected(gate, capsys, said, words, status):
    gate["fake_spec"] = said
    entry = f"{{decoder: fake_spec, name: fake_spec, overrides: {[*words]}}}"
    assert main(["check", SEARCHPATH, "study=fake", f"decoders=[fake_ar,{entry}]"]) == status
    shown = capsys.readouterr()
    assert ("not as expected: fake_spec" in shown.err) == (status == 1)
    verdict = said.verdict if isinstance(said, GateReport) else "not checked"
    assert verdict in shown.out
    if verdict == "not checked":
        assert "raised RuntimeError: no small twin, at " in shown.out and "; mend that" in shown.out


def test_the_column_shows_the_figure_unless_exact(gate, fake_study):
    gate["fake_spec"] = GateReport("broken", 0.4021, "above its bound")
    config = fake_study("decoders=[fake_ar,fake_spec]", "gate=true", "latency.prompts=2")
    result = run_study(config)
    text = {entry.name: entry.text("exactness") for entry in finish(config, result).entries}
    assert text["fake_ar"] == "exact" and text["fake_spec"] == "broken (TV 0.4021)"
    with (result.path / "exactness.csv").open() as file:
        details = {row["decoder"]: row["detail"] for row in csv.DictReader(file)}
    assert details["fake_spec"] == "above its bound"


def test_decoders_that_are_judged_at_once_get_the_same_reports(monkeypatch):
    entries = [
        DecoderEntry(f"ar{i}", DecoderSpec(f"ar{i}", AR), SamplingConfig()) for i in range(6)
    ]
    every = [DecoderVariant(entry, Sampling(temperature=0.0, cfg=2.0)) for entry in entries]
    assert len(every) >= 2 * DECODERS_OF_A_PROCESS
    found = {}
    for cores in (1, 2):
        monkeypatch.setattr("bench.run.finish.available_cores", lambda cores=cores: cores)
        with reports(every, RealModel()) as judged:
            found[cores] = [*judged]
    assert found[1] == found[2] and {report.verdict for report in found[1]} == {"exact"}
