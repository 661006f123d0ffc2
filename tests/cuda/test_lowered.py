"""Without a card every kernel of every decoder's step is compiled for one: at LlamaGen-XL's sizes,
within the card's shared memory, and without a spill.

They run with `-m codegen`, a stage of `.ci/run`. A new decoder in conf/decoder is found.
"""

from dataclasses import replace

import pytest

from decoders.api import Sampling
from decoders.cache import KVCache
from decoders.models.nets.attention import OPERATORS
from tests.cuda import lowered
from tests.cuda.lowered import Binary, Compiler, Step
from tests.cuda.pretend import CARDS, Card
from tests.decoders.compositions import DECODERS, WITH, spec_of

SETTINGS = {
    "top_k": Sampling(cfg=7.5, top_k=1000),
    "top_p": Sampling(cfg=7.5, top_p=0.9),
    "greedy": Sampling(temperature=0.0, cfg=7.5),
}
EVERYWHERE = ("ar", "lantern_pp", "sjd")  # what is compiled for every card
CASES = [
    pytest.param(name, setting, cc, id=f"{name}-{setting}-sm_{cc}")
    for name in (*DECODERS, *WITH)
    for cc in (CARDS if name in EVERYWHERE else (90,))
    for setting in SETTINGS
]

pytestmark = pytest.mark.codegen


@pytest.fixture(scope="session")
def compiler() -> Compiler:
    return Compiler()


@pytest.fixture
def uncompiled(monkeypatch: pytest.MonkeyPatch) -> Compiler:
    """Lowers to source alone."""
    monkeypatch.setattr(Compiler, "generated", lambda _, name, *__: name)
    return Compiler()


def require_fits(step: Step, card: Card) -> None:
    """Every kernel compiles and fits the card, and none copies a cache."""
    names = [kernel.name for kernel in step.kernels if isinstance(kernel, Binary)]
    assert sum(each.startswith("triton_") for each in names) >= 5
    wrong = [k if isinstance(k, str) else k.reason(card) for k in step.kernels]
    assert sorted({reason for reason in wrong if reason}) == []
    assert step.copies == []


@pytest.mark.parametrize(("name", "setting", "cc"), CASES)
def test_every_kernel_of_a_step_compiles_and_fits(compiler, name, setting, cc):
    require_fits(compiler.step(name, SETTINGS[setting], CARDS[cc]), CARDS[cc])


@pytest.mark.parametrize(("name", "cc"), [("ar", 120), ("lantern_pp", 90)])
def test_no_kernel_of_two_layers_copies_a_cache(compiler, name, cc):
    require_fits(compiler.step(name, SETTINGS["top_k"], CARDS[cc], layers=2), CARDS[cc])


def test_a_copy_of_a_cache_is_seen(uncompiled, monkeypatch):
    read = KVCache.read
    monkeypatch.setattr(KVCache, "read", lambda self, layer: read(self, layer).clone() + 1)
    assert uncompiled.step("ar", SETTINGS["top_k"], CARDS[120], layers=2).copies


def test_a_layer_is_compiled_once_however_many_there_are(uncompiled):
    few, many = (uncompiled.step("ar", SETTINGS["top_k"], layers=n) for n in (3, 12))
    assert len(many.kernels) == len(few.kernels) < 40
    assert many.copies == []


def test_settings_of_a_rule_are_no_part_of_the_code(uncompiled, monkeypatch):
    """Five deltas are one compilation."""
    before = spec_of("lantern")
    for delta in (0.1, 0.3):
        rule = replace(before.acceptance, kwargs={**before.acceptance.kwargs, "delta": delta})
        changed = replace(before, acceptance=rule)
        monkeypatch.setattr(lowered, "spec_of", lambda _, spec=changed: spec)
        uncompiled.step("lantern", SETTINGS["top_k"])
        assert len(uncompiled.pieces) == 4  # the prefill and three pieces of a step


@pytest.mark.parametrize("way", OPERATORS)
def test_no_attention_that_a_card_may_choose_copies_a_cache(way, uncompiled):
    assert uncompiled.step("ar", SETTINGS["top_k"], layers=2, attention=way).copies == []


def test_a_step_calls_no_topk_and_a_layer_is_ten_launches(uncompiled):
    """Nine kernels and attention."""
    two, three = (uncompiled.step("ar", SETTINGS["top_k"], layers=n).launches for n in (2, 3))
    assert sum((three - two).values()) == 10
    assert not any("topk" in name for name in two)
    assert sum(two.values()) <= 28
