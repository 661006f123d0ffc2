"""`python -m bench check` and the exactness column: verdicts beside what was expected."""

import csv
from dataclasses import replace

import pandas as pd
import pytest

from bench.__main__ import main
from bench.config.compose import compose_study
from bench.config.schema import DecoderEntry, DecoderVariant, SamplingConfig
from bench.errors import Failure
from bench.gate import RealModel
from bench.gate.check import _verdict, check_decoder
from bench.gate.result import Check
from bench.gate.verdicts import bounds_exceeded, checked, not_checked
from bench.run.study import finish, run_study
from bench.store.facts import Verdict
from decoders.api import Sampling
from decoders.compose import DecoderSpec
from decoders.propose.trees.chain import Chain
from tests.bench.fakes import SEARCHPATH
from tests.exact.specs import AR, composed, part, verifying

WORDS = [SEARCHPATH, "study=fake", "decoders=[fake_ar,fake_spec]"]


@pytest.fixture
def gate(monkeypatch):
    """A gate whose verdicts a test sets by decoder; an exception is raised instead."""
    says: dict[str, Verdict | BaseException] = {}

    def check_decoder(spec, sampling, model):
        said = says[spec.name]
        if isinstance(said, BaseException):
            raise said
        return said

    monkeypatch.setattr("bench.gate.verdicts.check_decoder", check_decoder)
    says["fake_ar"] = Verdict("exact", "equal", 0.0)
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
        (Verdict("exact", "", 0.0), [], 0),
        (Verdict("relaxed", "", 0.1), [], 0),
        (Verdict("broken", "above its bound", 0.4), [], 1),
        (Verdict("broken", "as published", 0.4), ["expect=broken"], 0),
        (Verdict("relaxed", "", 0.1), ["expect=exact"], 1),
        (Verdict("relaxed", "", 0.1), ["expect=broken"], 1),
        (RuntimeError("no small twin"), [], 1),
    ],
)
def test_the_status_says_whether_all_is_as_expected(gate, capsys, said, words, status):
    gate["fake_spec"] = said
    entry = f"{{decoder: fake_spec, name: fake_spec, overrides: {[*words]}}}"
    assert main(["check", SEARCHPATH, "study=fake", f"decoders=[fake_ar,{entry}]"]) == status
    shown = capsys.readouterr()
    assert ("not as expected: fake_spec" in shown.err) == (status == 1)
    verdict = said.word if isinstance(said, Verdict) else "not checked"
    assert verdict in shown.out
    if verdict == "not checked":
        said_of_it = " ".join(shown.out.split())  # it is wrapped
        assert (
            "raised RuntimeError: no small twin, at " in said_of_it and "; mend that" in said_of_it
        )


def test_the_column_shows_the_figure_unless_exact(gate, fake_study):
    gate["fake_spec"] = Verdict("broken", "above its bound", 0.4021)
    config = fake_study("decoders=[fake_ar,fake_spec]", "gate=true", "latency.prompts=2")
    result = run_study(config)
    text = {entry.name: entry.text("exactness") for entry in finish(result).entries}
    assert text["fake_ar"] == "exact" and text["fake_spec"] == "broken (TV 0.4021)"
    with (result.path / "exactness.csv").open() as file:
        details = {row["decoder"]: row["detail"] for row in csv.DictReader(file)}
    assert details["fake_spec"] == "above its bound"


def test_decoders_that_are_judged_at_once_get_the_same_reports(monkeypatch):
    entries = [
        DecoderEntry(f"ar{i}", DecoderSpec(f"ar{i}", AR), SamplingConfig()) for i in range(2)
    ]
    every = [DecoderVariant(entry, Sampling(temperature=0.0, cfg=2.0)) for entry in entries]
    monkeypatch.setattr("bench.gate.verdicts.DECODERS_PER_PROCESS", 1)
    found = {}
    for cores in (1, 2):
        monkeypatch.setattr("bench.gate.verdicts.available_cores", lambda cores=cores: cores)
        with checked(every, RealModel()) as judged:
            found[cores] = [*judged]
    assert found[1] == found[2] and {verdict.word for verdict in found[1]} == {"exact"}


def test_a_verdict_is_shown_as_it_falls_and_kept_until_all_are_there(
    gate, capsys, monkeypatch, tmp_path
):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    gate["fake_spec"] = KeyboardInterrupt()
    assert main(["check", *WORDS]) == 130
    assert "fake_ar: exact" in capsys.readouterr().out
    gate["fake_ar"], gate["fake_spec"] = Verdict("broken", "", 1.0), Verdict("exact", "", 0.0)
    assert main(["check", *WORDS, "backend.dtype=bfloat16"]) == 1  # another model, so anew
    assert main(["check", *WORDS]) == 0  # it goes on
    assert main(["check", *WORDS]) == 1  # and begins again


def test_fast_looks_at_the_rules_alone(capsys):
    words = ["study=smoke", "decoders=[ar,sd_chain]", "--fast"]
    assert main(["check", *words]) == 0
    shown = capsys.readouterr().out
    assert "ar: no rule" in shown and "sd_chain: exact rule" in shown and "images" in shown


def test_of_several_faults_the_likeliest_cause_is_named_first(monkeypatch):
    """A drafter that mixes images of a batch breaks the law of images too."""
    faults = [
        Check("verified law", "the law is another"),
        Check("batches", "images mix"),
        Check("numbers", "images are off"),
        Check("wide", "drafts are not of q", tv=0.2),
    ]
    monkeypatch.setattr(
        "bench.gate.check._sampling", lambda case, look: _verdict(case, "exact", "", faults)
    )
    detail = check_decoder(composed(), Sampling(), RealModel()).detail
    said = [detail.index(one.fault) for one in (faults[1], faults[0], faults[3], faults[2])]
    assert said == sorted(said)


def test_what_cannot_be_imported_is_mended_once():
    broken = Failure("BrokenModule: cannot import 'x'; mend the file or install what it needs")
    assert not_checked(broken).detail.count("mend") == 1
    assert not_checked(Failure("ValueError: no")).detail.count("mend") == 1


class Misplaced(Chain):
    """A chain of which node `at` names another child."""

    def __init__(self, model, at: int, child: int) -> None:
        super().__init__(model, depth=4)
        self.at, self.child = at, child

    def grow(self, *given):
        draft = super().grow(*given)
        children = draft.children.clone()
        children[:, self.at] = self.child
        return replace(draft, children=children)


class Cut(Chain):
    """A chain of which a tensor is another, as if its author had forgotten the root."""

    def __init__(self, model, tensor: str, change: str) -> None:
        super().__init__(model, depth=4)
        self.tensor, self.change = tensor, change

    def grow(self, *given):
        draft = super().grow(*given)
        value = getattr(draft, self.tensor)
        changed = {"short": value[:, :-1], "flat": value[..., 0], "int": value.int()}[self.change]
        return replace(draft, **{self.tensor: changed})


@pytest.mark.parametrize(
    ("name", "change", "says"),
    [
        ("children", "short", "[2, 4, 1] torch.int64; expected [B, N + 1, K] = [2, 5, K] int64, an "
         "entry for each node of `codes`, from 0 to 4: node 4 has none"),
        ("children", "flat", "[2, 5] torch.int64; expected [B, N + 1, K] = [2, 5, K] int64"),
        ("parents", "short", "[2, 4] torch.int64; expected [B, N + 1] = [2, 5] int64"),
        ("depth", "int", "[2, 5] torch.int32; expected [B, N + 1] = [2, 5] int64"),
        ("q", "short", "[2, 4, 12] torch.float32; expected [B, N + 1, V] = [2, 5, V] float32"),
    ],
)  # fmt: skip
def test_a_tensor_of_a_draft_that_is_too_short_is_named_with_node_and_limit(name, change, says):
    verdict = check_decoder(composed(part(__name__, "Cut", tensor=name, change=change)), Sampling())
    assert verdict.word == "broken"
    assert f"Cut breaks the contract of `decoders.api.Draft`: {name} is {says}" in verdict.detail


@pytest.mark.parametrize(
    ("at", "child", "says"),
    [
        (0, 2, "children[0, 0, 0] is node 2, whose entry of `parents` is 1; expected 0"),
        (3, 9, "children[0, 3, 0] is 9; expected a node from 1 to 4, or 0 for none"),
    ],
)
def test_children_of_a_tree_that_are_none_are_named_with_their_node(at, child, says):
    tree = part(__name__, "Misplaced", at=at, child=child)
    verdict = check_decoder(composed(tree), Sampling())
    assert verdict.word == "broken" and "guidance" not in verdict.detail
    assert verdict.detail.endswith(f"Misplaced breaks the contract of `decoders.api.Draft`: {says}")


@pytest.mark.parametrize(("declared", "broken"), [(0.3, False), (0.1, True), (0.19997, True)])
def test_a_rule_beyond_the_output_bound_it_declares_is_broken_by_the_runs_own_pairs(
    declared, broken
):
    entry = DecoderEntry(
        "cool", composed(rule=verifying("cool_sd.CoolSD", delta=1.5)), SamplingConfig()
    )
    row = {"decoder": "cool", "status": "ok", "tv_output": [0.1, 0.2]}
    rows = pd.DataFrame([row | {"tv_declared_bound": [0.3, declared]}])
    found = bounds_exceeded([DecoderVariant(entry, Sampling())], rows)
    assert ("cool" in found) == broken
    if broken:
        assert (
            found["cool"].text == "broken (TV 0.2000)" and "1 of 2 recorded" in found["cool"].detail
        )
