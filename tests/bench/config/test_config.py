"""What a user types becomes a study, or a message that helps."""

import dataclasses

import pytest

from bench.commands.train import compose_train
from bench.config.compose import compose_study
from bench.errors import ConfigError
from decoders.execution import gpu
from decoders.execution.cpu import library
from tests.bench.fakes import SEARCHPATH

SPEC = "{decoder: fake_spec, name: big, overrides: ['acceptance.k=8', 'loop.step=5']}"


def entry(config, name):
    return next(e for e in config.decoders if e.name == name)


def test_study_main_composes_the_published_decoders():
    config = compose_study(["study=full"])
    names = [e.name for e in config.decoders]
    assert names[:6] == ["ar", "sd_chain", "eagle1", "eagle2", "lantern", "lantern_pp"]
    lantern, released = entry(config, "lantern"), entry(config, "lantern_released")
    assert lantern.spec.acceptance.kwargs["residual"] == "paper"
    assert released.spec.acceptance.kwargs["residual"] == "released"
    assert entry(config, "ar").spec.drafter is None and entry(config, "ar").baseline
    assert [e.name for e in config.decoders if e.sampling.temperature == 0] == [
        "ar_greedy", "eagle2_greedy", "lantern_greedy", "lantern_pp_greedy"
    ]  # fmt: skip


def test_a_subset_keeps_the_entries_of_the_study_and_equal_ones_run_once():
    config = compose_study(["study=full", "decoders=[ar_greedy,lantern]"])
    assert [e.name for e in config.decoders] == ["ar_greedy", "lantern"]
    assert config.decoders[0].sampling.temperature == 0
    assert compose_study(["study=full", "decoders=ar_greedy,lantern"]) == config
    config = compose_study(["study=main", "sampling.temperature=0"])
    assert [e.name for e in config.decoders if e.name.startswith("ar")] == ["ar"]
    apart = ["ar_T", "ar_t0", "é", "e"]  # names that are no one file anywhere
    entries = ", ".join(f"{{decoder: ar, name: '{name}'}}" for name in apart)
    config = compose_study(["study=smoke", f"decoders=[{entries}]"])
    assert [e.name for e in config.decoders] == apart


def spec(config, name):
    """The parts of an entry without its name."""
    return dataclasses.replace(entry(config, name).spec, name="")


def test_an_entry_of_the_command_line_begins_with_the_study_s_own():
    given = [
        *("lantern_pp", "lantern_pp_chain_l100", "sd_chain", "lantern"),
        "{decoder: lantern_pp, name: pp2}",
        "{decoder: lantern_pp_chain_l100, name: chain2}",
        "{decoder: sd_chain, name: mine, overrides: 'tree.depth=2'}",
        "{decoder: lantern, name: static, overrides: ['tree=static', 'acceptance=exact']}",
    ]
    words = ["study=main", f"decoders=[{','.join(given)}]"]
    config = compose_study(words)
    assert spec(config, "pp2") == spec(config, "lantern_pp")
    assert entry(config, "pp2").spec.tree.kwargs == {"choices": "binary_8"}
    assert entry(config, "pp2").spec.acceptance.kwargs.items() >= {"k": 64, "lam": 20}.items()
    assert spec(config, "chain2") == spec(config, "lantern_pp_chain_l100")
    assert [entry(config, n).spec.tree.kwargs["depth"] for n in ("sd_chain", "mine")] == [3, 2]
    static = entry(config, "static").spec  # settings of parts that it replaces are not its own
    assert static.tree.kwargs == {"choices": "naive_extend_57"} and not static.acceptance.kwargs
    config = compose_study(["study=main", "decoders=[{decoder: sd_chain, name: mine}]"])
    assert entry(config, "mine").spec.tree.kwargs == {"depth": 3}


def test_a_study_with_several_entries_of_a_decoder_and_none_of_its_name_gives_none_of_them():
    config = compose_study(["study=sweep", "decoders=[lantern,{decoder: eagle2, name: mine}]"])
    assert entry(config, "lantern").spec.acceptance.kwargs["k"] == 100
    assert entry(config, "mine").spec.tree.kwargs["nodes"] == 7, "the study has one of eagle2"


def test_a_forced_override_goes_to_the_entries_that_have_the_setting():
    words = ["study=smoke", "decoders=[ar,sd_chain,lantern]"]
    forced = compose_study([*words, "++acceptance.delta=0.3"])
    assert forced == compose_study([*words, "acceptance.delta=0.3"])
    for option in ("tree=chain", "metric=none", "acceptance=lantern,exact"):
        assert compose_study([*words, f"++{option}"]) == compose_study([*words, option])
    assert entry(forced, "lantern").spec.acceptance.kwargs["delta"] == 0.3


def test_a_new_rule_is_not_held_to_the_verdict_expected_of_the_old_one():
    words = ["study=main", "decoders=[sd_chain]"]
    assert entry(compose_study(words), "sd_chain").expect == "exact"
    assert entry(compose_study([*words, "acceptance=lenience"]), "sd_chain").expect is None


def test_global_overrides_reach_every_entry_that_has_the_setting(fake_study):
    config = fake_study("acceptance.k=9", "sampling.cfg=3", f"decoders=[fake_ar,fake_spec,{SPEC}]")
    assert entry(config, "fake_spec").spec.acceptance.kwargs["k"] == 9
    assert entry(config, "big").spec.acceptance.kwargs["k"] == 9, "the command line comes last"
    assert entry(config, "fake_ar").spec.acceptance is None
    assert {e.sampling.cfg for e in config.decoders} == {3.0}


def test_a_swapped_part_takes_settings_of_its_own_on_the_same_line():
    words = ["study=main", "decoders=[ar,lantern]", "tree=chain", "tree.depth=3"]
    config = compose_study(words)
    assert entry(config, "ar").spec.tree is None
    assert entry(config, "lantern").spec.tree.kwargs == {"depth": 3}
    with pytest.raises(ConfigError, match="choices"):  # a setting of the part that was replaced
        compose_study([*words, "tree.choices=[[0]]"])
    assert entry(compose_study([*words[:2], "tree=none"]), "lantern").spec.tree is None
    trees = [e.spec.tree for e in compose_study(["study=main", "tree=chain"]).decoders]
    assert {tree.target for tree in trees if tree} == {"decoders.propose.trees.chain.Chain"}
    static = compose_study([*words[:2], "tree=static_small"])
    assert entry(static, "lantern").spec.tree.target.endswith("Static")


@pytest.mark.parametrize(
    ("group", "words", "kwargs"),
    [
        ("metric", ["study=smoke", "metric=scenes"], {"reference": 128}),
        ("metric", ["study=smoke", "metric.reference=64"], {"reference": 64}),
        ("metric", ["study=smoke", "metric=coco"], {"reference": "data/coco/val2017"}),
        ("prompts", ["study=tune", "prompts=scenes"], {"split": "bench", "seed": 1}),
        ("prompts", ["study=tune", "prompts=file", "prompts.path=x.txt"], {"path": "x.txt"}),
        ("prompts", ["study=tune", "prompts=classes", "prompts.classes=9"], {"classes": 9}),
    ],
)
def test_what_a_study_sets_of_its_metric_or_prompts_is_not_of_others(group, words, kwargs):
    found = getattr(compose_study(["decoders=[ar]", *words]), group).kwargs
    assert found.items() >= kwargs.items()
    if "prompts=scenes" not in words and group == "prompts":
        assert not {"split", "seed"} & {*found}
    with pytest.raises(ConfigError, match=f"unknown setting '{group}.refernce'"):
        compose_study(["decoders=[ar]", *words, f"{group}.refernce=1"])


def test_the_hash_follows_what_is_measured_and_nothing_else(fake_study):
    base = fake_study()
    assert fake_study("run_dir=/elsewhere", "gate=true", "retry_failed=true").hash == base.hash
    for word in ("seed=5", "latency.prompts=3", "backend.threads=2", "acceptance.k=5"):
        assert fake_study(word).hash != base.hash, word


def test_a_sweep_makes_a_decoder_of_each_combination_that_applies():
    words = ["decoders=[ar,lantern,lantern_pp]", "acceptance.delta=0.1,0.2", "tree=chain,dynamic"]
    config = compose_study(["study=smoke", *words, "acceptance.k=9"])
    names = [e.name for e in config.decoders]
    lantern = [f"lantern_delta{d}_{tree}" for d in ("0.1", "0.2") for tree in ("chain", "dynamic")]
    assert names == ["ar", *lantern, "lantern_pp_chain", "lantern_pp_dynamic"]
    made = entry(config, "lantern_delta0.2_chain").spec
    assert made.acceptance.kwargs["delta"] == 0.2 and made.acceptance.kwargs["k"] == 9
    assert made.tree.target.endswith("Chain")


# ---- backend: settled when a study is composed ---------------------------------------------------

STUDY = [SEARCHPATH, "study=fake", "decoders=[ar]"]


@pytest.mark.parametrize("fault", [None, "no C++ compiler was found; install g++"])
def test_a_processor_without_a_compiler_runs_eagerly_and_says_so(fault, monkeypatch, caplog):
    monkeypatch.setattr(library, "missing", lambda: fault)
    how = compose_study(["study=smoke", "backend=cpu"]).backend.execution
    assert how == ("eager" if fault else "compile")
    assert (f"several times slower on a small model than the project's C++ operators: {fault}"
            in caplog.text) == bool(fault)  # fmt: skip
    on_card = compose_study(["study=smoke", "backend=cuda_compile"]).backend
    assert on_card.execution == "compile"


@pytest.mark.parametrize("how", ["works", "broken", "missing"])
def test_without_a_word_a_card_that_works_is_taken(how, monkeypatch, caplog):
    fault = {"works": None, "broken": "card: no kernel image", "missing": gpu.NO_CARD}[how]
    monkeypatch.setattr(gpu, "card_fault", lambda: fault)
    chosen = compose_study([*STUDY, "backend.threads=1"]).backend
    assert (chosen.name, chosen.threads) == ("cuda_graph" if how == "works" else "cpu", 1)
    assert ("runs on the processor: card: no kernel" in caplog.text) == (how == "broken")
    assert compose_study([*STUDY, "backend=cpu"]).backend.device == "cpu"
    second = compose_study([*STUDY, "backend.device=cuda:1"]).backend
    assert (second.name, second.device) == ("cuda_graph", "cuda:1")
    assert compose_study([*STUDY, "backend=auto"]).backend.name == chosen.name


def test_training_is_pytorchs():
    words = [SEARCHPATH, "model=random24", "drafter=eagle", "data=random24"]
    for how in ("cpu", "cuda_graph"):
        assert compose_train([*words, f"backend={how}"]).backend.execution == "eager"
