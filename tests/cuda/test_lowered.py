"""Without a card every kernel of every decoder's step is compiled for one: at LlamaGen-XL's sizes,
within the card's shared memory, and without a spill.

A handful runs with all tests, the rest with `-m codegen`. A new decoder in conf/decoder is found.
"""

from pathlib import Path

import pytest
import torch
import triton
import triton.language as tl
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource

from decoders.api import Sampling
from decoders.cache import KVCache
from tests.cuda.lowered import Binary, Compiler, Step, binary
from tests.cuda.pretend import CARDS, Card, Operators, fake
from tests.decoders.compositions import WITH

SETTINGS = {
    "top_k": Sampling(cfg=7.5, top_k=1000),
    "top_p": Sampling(cfg=7.5, top_p=0.9),
    "greedy": Sampling(temperature=0.0, cfg=7.5),
}
CONF = Path(__file__).parents[2] / "conf" / "decoder"
NAMES = sorted(path.stem for path in CONF.glob("[!h]*.yaml"))  # without transformers' loops
EVERYWHERE = ("ar", "lantern_pp", "sjd")  # what is compiled for every card
FEW = {("ar", "top_k", 90), ("ar", "top_k", 120)}
CASES = [
    pytest.param(
        name, setting, cc, id=f"{name}-{setting}-sm_{cc}",
        marks=() if (name, setting, cc) in FEW else pytest.mark.codegen,
    )
    for name in (*NAMES, *WITH)
    for cc in (CARDS if name in EVERYWHERE else (90,))
    for setting in SETTINGS
]  # fmt: skip
MOST = {  # launches of a piece with one layer
    ("ar", "top_k"): {"forward": 19},
    ("lantern_pp", "top_k"): {"draft": 120, "forward": 18, "accept": 25},
    ("lantern_pp", "greedy"): {"accept": 20},
}


@pytest.fixture(scope="session")
def compiler() -> Compiler:
    return Compiler()


def require_fits(found: Step, card: Card) -> None:
    """Every kernel compiles and fits the card, and none copies a cache."""
    names = [kernel.name for kernel in found.kernels if isinstance(kernel, Binary)]
    assert sum(each.startswith("triton_") for each in names) >= 5
    wrong = [k if isinstance(k, str) else k.reason(card) for k in found.kernels]
    assert sorted({reason for reason in wrong if reason}) == []
    assert found.copies == []


@pytest.mark.parametrize(("name", "setting", "cc"), CASES)
def test_every_kernel_of_a_step_compiles_and_fits(compiler, name, setting, cc):
    found = compiler.step(name, SETTINGS[setting], CARDS[cc])
    require_fits(found, CARDS[cc])
    for phase, most in MOST.get((name, setting), {}).items():
        assert found.launches[phase] <= most, phase


def test_no_kernel_of_two_layers_copies_a_cache(compiler):
    require_fits(compiler.step("lantern_pp", SETTINGS["top_k"], layers=2), CARDS[90])


def test_a_copy_of_a_cache_is_seen(compiler, monkeypatch):
    def copied(self, layer):
        return tuple(half.clone() + 1 for half in read(self, layer))

    read = KVCache.read
    monkeypatch.setattr(KVCache, "read", copied)
    assert len(compiler.step("ar", SETTINGS["top_k"]).copies) == 2


def test_all_decoders_are_looked_at():
    assert {"ar", "sjd", "lantern_pp", "eagle2"} <= set(NAMES) and len(NAMES) >= 20


def test_views_and_allocations_launch_nothing():
    with fake():
        x = torch.empty(4, 6, device="cuda")
        with Operators() as operators:
            y = x.view(6, 4).transpose(0, 1)[1:].reshape(-1)  # a copy: it is not dense
            y.add_(1)
            x.topk(2)
    assert operators.found == {"clone": 1, "add_": 1, "topk": 2}


SIGNATURE = {"x": "*fp32", "out": "*fp32", "SIZE": "constexpr"}


@triton.jit
def crowded(x, out, SIZE: tl.constexpr):
    """Sums that all have to be at hand."""
    y = tl.arange(0, SIZE)
    value = tl.load(x + y)
    for _ in range(8):
        value = value * tl.sum(value, 0) + tl.cumsum(value, 0)
    tl.store(out + y, value)


def test_a_kernel_that_spills_or_wants_too_much_memory_is_told():
    spilling, fine = (
        binary(
            triton.compile(
                ASTSource(crowded, SIGNATURE, {"SIZE": size}),
                target=GPUTarget("cuda", 90, 32), options={"num_warps": 4} | options,
            ),
            "crowded",
        )
        for size, options in ((8192, {"maxnreg": 32}), (1024, {}))
    )  # fmt: skip
    assert (
        spilling.reason(CARDS[90]) == f"crowded spills {spilling.spilled} bytes per thread on sm_90"
    )
    assert spilling.spilled >= 100 and spilling.registers <= 32
    assert fine.reason(CARDS[90]) is None and 16 <= fine.registers <= 255
    large = Binary("large", 64, 0, 131072)
    assert large.reason(CARDS[90]) is None
    assert "wants 131072 bytes of shared memory, L40S (sm_89) has 101376" in large.reason(CARDS[89])
