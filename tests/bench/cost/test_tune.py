"""`bench tune`: the grid as a user writes it, what is refused before any work, and a whole search
that ends in a decoder which composes again."""

import math
import shlex
from pathlib import Path

import pandas as pd
import pytest

import conf
from bench.__main__ import main
from bench.commands.tune import MARK, claim, command
from bench.config.compose import compose_study
from bench.data.errors import ConfigError
from bench.judge.gate import sampled
from bench.predict.search import begin, declared, record
from bench.predict.settings import combinations, compose_tune
from decoders.compose import PartSpec
from decoders.models.small import random_model
from decoders.propose.trees.chain import Chain
from decoders.verify.exact import Exact
from decoders.verify.lantern import Lantern, LanternPP
from tests.bench.fakes import SEARCHPATH

ROOT = Path(__file__).parents[3]
SMALL = [
    SEARCHPATH, "model=random24", "prompts=fake", "backend.threads=1", "backend.dtype=float32",
    "latency.prompts=2", "latency.warmup_max=1", "latency.busy=1", "backend.layers=torch",
    "tune.prompts=2", "tune.probes=1", "tune.pairs=8",
]  # fmt: skip
TREES = "tune.trees=[{tree: chain, depth: [1, 3]}, {tree: static, choices: binary_8}]"
RULES = "tune.rules=[{acceptance: exact}, {acceptance: lantern, k: 4, delta: [0.2]}]"


def test_lists_of_the_grid_are_multiplied_and_named():
    items = [{"tree": "static", "choices": ["narrow_9", [[0], [1]]]}, {"tree": "dynamic"}]
    assert list(combinations("tree", items)) == [
        ("static_narrow_9", ["tree=static", 'tree.choices="narrow_9"']),
        ("static_choices2", ["tree=static", "tree.choices=[[0],[1]]"]),
        ("dynamic", ["tree=dynamic"]),
    ]
    pair = [{"acceptance": "lantern", "k": [1, 2], "delta": [0.1, 0.2]}]
    assert len(list(combinations("acceptance", pair))) == 4
    with pytest.raises(ConfigError, match="a list of the grid is empty"):
        list(combinations("tree", [{"tree": "chain", "depth": []}]))


def test_a_search_composes_trees_and_rules_of_conf():
    told = compose_tune([*SMALL, TREES, RULES, "acceptance.residual=released"])
    assert [o.slug for o in told.trees] == ["chain_depth1", "chain_depth3", "static_binary_8"]
    assert [o.slug for o in told.rules] == ["exact", "lantern_k4_delta0.2"]
    assert told.rules[1].spec.kwargs["residual"] == "released"  # overrides reach every candidate
    assert [e.name for e in told.study.decoders] == ["ar"]
    default = compose_tune([])
    assert len(default.trees) * len(default.rules) > 50


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (["tune.exactness=exat"], "found 'exat' (str); did you mean 'exact'"),
        (["tune.tv=1.5"], "tune.tv must be at most 1"),
        (["tune.prompts=0"], "tune.prompts must be at least 1"),
        (["tune.trees=[]"], "tune.trees is empty"),
        (["tune.out=mine.json"], "tune.out must end in .yaml"),
        (
            ["tune.exactness=exact", "tune.rules=[{acceptance: lantern, k: 4}]"],
            "every rule of tune.rules is relaxed",
        ),
        (["tune.trees=[{tree: chainn}]"], "unknown tree 'chainn'; did you mean 'chain'"),
        (["tune.trees=[chain]"], "must be {tree: NAME, ...}, found 'chain'"),
        (["tune.rules=[{acceptance: lantern, kk: 3}]"], "acceptance.k"),
        (["tune.trees=[{tree: chain, depth: 0}]"], "tree.depth must be at least 1"),
        (["tune.rules=[{acceptance: lantern, k: 4, delta: 7}]"], "total-variation bound in [0, 1]"),
        (["latency.prompts=1"], "a speed-up with an interval needs 2 or more"),
        (["tune.tv=0.1", "sampling.temperature=0"], "at temperature 0 there is none"),
        (["tune.base=ar"], "tune.base=ar has no drafter"),
        (["tune.speed=9"], "tune.speed"),
        (["tune=3"], "set one of tune.NAME=..."),
        (["decoders=[ar,eagle2]"], "measured against AR alone"),
        (["tune.out=/proc/nowhere/decoder/x.yaml"], "cannot be written"),
        (["tune.out=somewhere/x.yaml"], "decoders are found as DIR/decoder/NAME.yaml"),
        ([f"tune.out={ROOT}/conf/decoder/lantern.yaml"], "exists and no search wrote it"),
        (["tune.out=/tmp/decoder/lantern.yaml"], "there is a decoder lantern already"),
    ],
)
def test_bad_settings_are_refused_before_any_work(capsys, words, says):
    assert main(["tune", *SMALL, TREES, RULES, *words]) == 2
    err = capsys.readouterr().err
    assert says in err and "step/s" not in err


def test_a_search_ends_in_a_decoder_that_composes_again(tmp_path, capsys, monkeypatch):
    monkeypatch.setattr(sampled, "DRAWN", sampled.BATCH)  # of the gate
    words = [*SMALL, TREES, RULES, f"run_dir={tmp_path}", "tune.tv=0.001", "tune.measure=1"]
    assert main(["tune", *words]) == 0
    rows = pd.read_csv(tmp_path / "tune.csv")
    assert len(rows) == 6
    assert (rows.bound_max[rows.rule == "exact"] == 0).all()
    assert set(rows.rule[rows.eligible]) == {"exact"}
    assert set(rows.tree[rows.acceptance == "derived"]) == {"chain(depth=1)"}
    chosen = rows[rows.measured.notna()]
    assert list(chosen.verdict) == ["exact"] and (chosen.measured_lo <= chosen.measured).all()
    assert chosen.speedup.iloc[0] == rows.speedup[rows.eligible].max()
    out = capsys.readouterr().out
    path = tmp_path / "decoder" / "tuned.yaml"
    assert f"written to {path}" in out and "predicted speed-up" in out
    shown = shlex.split(out.split("to run it:")[1].strip().splitlines()[0])
    assert shown[:4] == ["python", "-m", "bench", "run"]
    ran = compose_study([*shown[4:], "study=smoke"])
    assert [entry.name for entry in ran.decoders] == ["ar", "tuned"]
    assert (ran.model.name, ran.backend.threads) == ("random24", 1)
    assert ran.run_dir == "results/runs/tuned"
    assert (tmp_path / "frontier.png").stat().st_size > 1000
    place = f"hydra.searchpath=[file://{tmp_path}]"
    (entry,) = compose_study(["study=smoke", place, "decoders=[tuned]"]).decoders
    tree, rule = chosen.decoder.iloc[0].split(".")[1], chosen.decoder.iloc[0].split(".")[0]
    wanted = next(o.spec for o in compose_tune(words).trees if o.slug == tree)
    assert entry.spec.tree == wanted and rule == "exact"
    assert entry.spec.acceptance == PartSpec("decoders.verify.exact.Exact")
    assert entry.expect == "exact" and not entry.baseline


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (["tune.tv=0"], "no candidate's output TV is at most tune.tv=0, the least is 0."),
        (["tune.exactness=relaxed"], "finds no candidate exact or relaxed (violating.chain_depth1"),
    ],
)
def test_a_search_that_finds_nothing_says_why(tmp_path, capsys, monkeypatch, words, says):
    rule = "tune.rules=[{acceptance: lantern, k: 4, delta: 0.9}]"
    tree = "tune.trees=[{tree: chain, depth: 1}]"
    monkeypatch.setattr("bench.predict.search.check_decoder", Violates)
    says = says.replace("violating", "lantern_k4_delta0.9")
    assert main(["tune", *SMALL, tree, rule, f"run_dir={tmp_path}", *words]) == 1
    printed = capsys.readouterr()
    assert says in printed.err and "winner" not in printed.out
    assert len(pd.read_csv(tmp_path / "tune.csv")) == 1
    assert not (tmp_path / "decoder" / "tuned.yaml").exists()


class Violates:
    """A gate that finds every decoder beyond what it declares."""

    verdict, text = "broken", "broken (TV 0.9)"

    def __init__(self, *parts: object) -> None:
        pass


def test_the_command_of_a_winner_keeps_what_it_was_found_on(tmp_path):
    words = ["study=tune", "model=tiny", "sampling.temperature=0", "latency.prompts=9",
             "tree.depth=2", "hydra.searchpath=[file:///mine]", "run_dir=/x"]  # fmt: skip
    own = tmp_path / "decoder" / "swift.yaml"
    assert shlex.split(command(own, words)) == [
        "python", "-m", "bench", "run", "name=swift", "decoders=[ar,swift]", "model=tiny",
        "sampling.temperature=0", f"hydra.searchpath=[file:///mine,file://{tmp_path}]",
    ]  # fmt: skip
    ours = Path(conf.__file__).parent / "decoder" / "swift.yaml"
    assert "searchpath" not in command(ours, ["model=tiny"])


def test_a_file_of_an_earlier_search_may_be_written_again(tmp_path):
    path = tmp_path / "decoder" / "swift.yaml"
    claim(path)
    path.write_text("# mine\n")
    with pytest.raises(ConfigError, match="no search wrote it"):
        claim(path)
    path.write_text(f"# {MARK} for tiny\n")
    claim(path)


# ---- what a recording says -------------------------------------------------------------------

MODEL = random_model(vocab=12, grid=6, seed=3)


def test_a_recording_says_what_quality_costs():
    prompts = [f"p{i}" for i in range(8)]
    words = [*SMALL, TREES, RULES, "tune.pairs=32", "sampling.cfg=2"]
    search = begin(compose_tune(words), MODEL)
    exact = record(search, Chain(depth=2), Exact(), prompts)
    relaxed = record(search, Chain(depth=2), Lantern(MODEL, k=3, delta=0.3), prompts)
    assert exact.bound == 0 and exact.moved == 0 and exact.tv < 1e-5
    assert relaxed.bound == pytest.approx(0.3) and 0 < relaxed.moved < 0.3 and relaxed.tv > 0.01
    search = begin(compose_tune([*words, "sampling.temperature=0"]), MODEL)
    assert math.isnan(record(search, Chain(depth=2), Exact(), prompts).tv)


def test_a_relaxed_rule_is_known_by_the_bound_it_declares():
    assert declared(Exact(), MODEL) == 0 and declared(Lantern(MODEL, k=3, delta=0.0), MODEL) == 0
    assert declared(Lantern(MODEL, k=3, delta=0.1), MODEL) == pytest.approx(0.1)
    assert declared(LanternPP(MODEL, k=3, lam=1.0), MODEL) == 0
    assert declared(LanternPP(MODEL, k=3, lam=2.0), MODEL) > 0
