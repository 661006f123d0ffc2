"""Without a card every kernel of every decoder's step is compiled for one: at LlamaGen-XL's sizes,
within the card's shared memory, and without a spill.

A handful runs with all tests, the rest with `-m codegen`. A new decoder in conf/decoder is found.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from decoders.api import Sampling

pytest.importorskip("triton", reason="what is compiled is Triton's")
import torch
import triton
import triton.language as tl
from triton.backends.compiler import GPUTarget

from tests.cuda.lowered import Binary, Compiler, binary, compiling
from tests.cuda.pretend import CARDS, fake

SETTINGS = {
    "top_k": Sampling(cfg=7.5, top_k=1000),
    "top_p": Sampling(cfg=7.5, top_p=0.9),
    "greedy": Sampling(temperature=0.0, cfg=7.5),
}
NAMES = sorted(path.stem for path in Path("conf/decoder").glob("*.yaml"))
EVERYWHERE = ("ar", "lantern_pp", "sjd")  # what is compiled for every card
FEW = {("ar", "top_k", 90), ("ar", "top_k", 120), ("lantern_pp", "top_k", 90), ("sjd", "top_k", 90)}
CASES = [
    pytest.param(
        name, setting, cc, id=f"{name}-{setting}-sm_{cc}",
        marks=() if (name, setting, cc) in FEW else pytest.mark.codegen,
    )
    for name in NAMES
    for cc in (CARDS if name in EVERYWHERE else (90,))
    for setting in SETTINGS
]  # fmt: skip


@pytest.fixture(scope="session")
def compiler() -> Compiler:
    return Compiler()


@pytest.mark.parametrize(("name", "setting", "cc"), CASES)
def test_every_kernel_of_a_step_compiles_and_fits(compiler, name, setting, cc):
    card = CARDS[cc]
    found = compiler.step(name, SETTINGS[setting], card)
    own = {kernel.name for kernel in found if isinstance(kernel, Binary)}
    assert len(found) >= 5 and own & {"attend_tree", "triton_"} != set()
    wrong = [k if isinstance(k, str) else k.reason(card) for k in found]
    assert sorted({reason for reason in wrong if reason}) == []


def test_all_decoders_are_looked_at():
    assert {"ar", "sjd", "lantern_pp", "eagle2"} <= set(NAMES) and len(NAMES) >= 40


@triton.jit
def crowded(x, out, SIZE: tl.constexpr):
    """Sums that all have to be at hand."""
    y = tl.arange(0, SIZE)
    value = tl.load(x + y)
    for _ in range(8):
        value = value * tl.sum(value, 0) + tl.cumsum(value, 0)
    tl.store(out + y, value)


def test_a_kernel_that_spills_or_wants_too_much_memory_is_told():
    with fake():
        x = torch.empty(8192, device="cuda")
        with compiling(GPUTarget("cuda", 90, 32)) as made:
            crowded[(1,)](x, x, SIZE=8192, num_warps=4, maxnreg=32)
            crowded[(1,)](x, x, SIZE=1024, num_warps=4)
    spilling, fine = (binary(kernel, "crowded") for kernel in made)
    assert (
        spilling.reason(CARDS[90]) == f"crowded spills {spilling.spilled} bytes per thread on sm_90"
    )
    assert spilling.spilled >= 100 and spilling.registers <= 32
    assert fine.reason(CARDS[90]) is None and 16 <= fine.registers <= 255
    large = Binary("large", 64, 0, 131072, {})
    assert large.reason(CARDS[90]) is None
    assert "wants 131072 bytes of shared memory, L40S (sm_89) has 101376" in large.reason(CARDS[89])


def test_what_triton_refuses_is_told(compiler):
    source = "from torch._inductor.runtime import triton_heuristics\n"
    found = compiler.known
    assert source and found is not None
