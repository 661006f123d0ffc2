"""Without a GPU the kernels are still compiled for the GPUs they are written for: every launch that
the wrappers make, for Hopper (CUDA) and CDNA3 (ROCm)."""

import os
import re
from typing import Any

import pytest
import torch

from decoders.kernels import candidates, sampling, tree_attention
from decoders.kernels.candidates import AttentionShape, Triton

triton = pytest.importorskip("triton", reason="no kernels without Triton")
lowered = pytest.importorskip("tests.cuda.lowered")
pretend = pytest.importorskip("tests.cuda.pretend")
pytestmark = pytest.mark.skipif(
    os.environ.get("TRITON_INTERPRET") == "1", reason="the interpreter compiles nothing"
)
CARDS, CUDA = pretend.CARDS, pretend.CUDA
CDNA3 = ("hip", "gfx942", 64)


@pytest.fixture(autouse=True)
def _cache(tmp_path, monkeypatch):
    monkeypatch.setenv("TRITON_CACHE_DIR", str(tmp_path))


def launched(card: Any, operator: Any, *given: Any, target: tuple[Any, ...] | None = None) -> Any:
    """What Triton makes of an operator's launch, for the card or for another target."""
    found = triton.backends.compiler.GPUTarget(*(target or ("cuda", card.cc, 32)))
    with lowered.compiling(found) as made:
        operator._init_fn(*given)
    return made[-1]


def attention(
    queries: int, size: int, dtype: torch.dtype, card: Any = CARDS[90], group: int = 1, **how: Any
) -> tuple[Any, tuple[Any, ...]]:
    """The attention of 20 heads over 440 slots, and its block, splits, warps and stages."""
    shared = 20 // group
    with pretend.fake(card):
        shape = AttentionShape(2, queries, 20, 440, size, dtype, CUDA, group)
        mask = torch.empty(2, queries, 440, dtype=torch.bool, device=CUDA)
        slots = torch.empty(2, queries, dtype=torch.long, device=CUDA)
        mask, slots, *rest = Triton().prepare(shape, mask, slots)
        qkv = torch.empty(2, queries, 20 + 2 * shared, size, dtype=dtype, device=CUDA)
        turns = torch.empty(2, queries, size // 2, 2, device=CUDA)
        cache = torch.empty(2, 2, shared, 440, size, dtype=dtype, device=CUDA)
        given = (qkv, turns, mask, slots, *cache.unbind(0), *rest)
        return launched(card, tree_attention.tree_attention, *given, **how), tuple(rest[2:])


def sampled(vocab: int, draws: int, card: Any = CARDS[90], **how: Any) -> Any:
    with pretend.fake(card):
        logits, u = torch.empty(1, 7, vocab, device=CUDA), torch.empty(1, 1, draws, device=CUDA)
        return launched(card, sampling.sampled, logits, u, 1.0, 1000, 0.9, **how)


ATTENTION = [  # T, d, dtype, an instruction that must be there
    (1, 64, torch.bfloat16, "mma.sync"),
    (58, 100, torch.float16, "wgmma.mma_async"),
    (58, 128, torch.float32, "wgmma.mma_async"),
]


@pytest.mark.parametrize(("queries", "size", "dtype", "instruction"), ATTENTION)
def test_tree_attention_compiles_for_hopper(queries, size, dtype, instruction):
    made, (_, splits, *_) = attention(queries, size, dtype)
    assert splits > 1  # batch 1 with guidance does not leave the GPU idle
    assert made.metadata.shared <= 227 * 1024
    code = made.asm["ptx"]
    assert instruction in code
    assert "cp.async" in code  # keys and values are fetched ahead
    # What a program appends is behind a barrier before its loop over the cache.
    steps = made.asm["ttir"]
    stored = steps.index("tt.store")
    loop = steps.index("scf.for", stored)
    assert "barrier" in steps[steps.rindex("tt.store", 0, loop) : loop]


@pytest.mark.parametrize("card", CARDS.values(), ids=lambda card: card.name)
def test_every_program_compiles_for_every_architecture(card):
    """Ampere, Ada, Hopper and consumer Blackwell: within their shared memory, and real code. And
    nothing is spilled."""
    for size, group in ((64, 1), (128, 4)):
        made, (block, _, _, stages) = attention(58, size, torch.bfloat16, card, group)
        most = tree_attention.shared_bytes(58, size, torch.bfloat16, block, stages)
        assert made.metadata.shared <= most <= card.shared
        assert f".target sm_{card.cc}" in made.asm["ptx"]
        assert lowered.binary(made, "made").spilled == 0
    for vocab in (1000, 16384):
        made = sampled(vocab, 4, card)
        assert made.metadata.shared <= 48 << 10 and lowered.binary(made, "made").spilled == 0


def test_a_tree_that_no_block_fits_is_refused(monkeypatch):
    monkeypatch.setattr(tree_attention, "shared_memory", lambda device: CARDS[89].shared)
    monkeypatch.setattr(candidates, "missing", lambda device: None)
    wide = AttentionShape(2, 64, 8, 440, 256, torch.float32, torch.device("cpu"))
    expected = r"need 163,840 bytes of shared memory, found 101,376 on this device"
    assert re.search(expected, Triton().reason(wide) or "")
