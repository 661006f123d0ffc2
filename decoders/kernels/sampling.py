"""From guided logits to p and to codes in one launch: temperature, top-k, top-p, softmax, and draws
without replacement.

In tensor code a level of a draft tree takes a selection, a sort, a softmax and ten more launches a
draw. Here a program per row does all of it and writes p once. AR's last code is one draw.
"""

from __future__ import annotations

import torch
from torch import Tensor

from decoders.api import DecoderError
from decoders.kernels.runtime import missing, power, programs
from decoders.noise import BELOW_ONE

MOST_CODES = 32768  # that a program holds in its registers
TILE = 1024  # codes a draw looks through


def fits(device: str, vocab: int) -> bool:
    """Whether rows of `vocab` codes are sampled by the program on a device of this type."""
    return device == "cuda" and vocab <= MOST_CODES and missing(torch.device(device)) is None


# Set by `torch.compiler.assume_constant_result`, whose call would import the compiler and Triton.
fits._dynamo_marked_constant = True  # type: ignore[attr-defined]


@torch.library.custom_op("lantern::sample", mutates_args=())
def sampled(
    logits: Tensor, u: Tensor, temperature: float, top_k: int, top_p: float
) -> tuple[Tensor, Tensor]:
    """logits [B, n, V] float32, u [B, n or 1, K] in [0, 1) -> p [B, n, V] float32 and K different
    codes [B, n, K] int64, as `decoders.distribution.processed` says. temperature > 0; top_k 0 and
    top_p 1 switch the filters off. Raises DecoderError where Triton cannot run."""
    device = programs("sampling_programs", logits.device)
    batch, groups, vocab = logits.shape
    if vocab > MOST_CODES or logits.dtype != torch.float32 or temperature <= 0:
        raise DecoderError(
            f"fused sampling takes float32 logits of up to {MOST_CODES} codes and a temperature "
            f"above 0, found {logits.dtype}, {vocab} and {temperature}"
        )
    logits = logits.contiguous()
    u = u.expand(batch, groups, -1)
    if u.stride(-1) != 1:
        u = u.contiguous()
    draws = u.shape[-1]
    p = torch.empty_like(logits)
    codes = logits.new_empty(batch, groups, draws, dtype=torch.long)
    tile = min(TILE, power(vocab))
    tiles = power(-(-vocab // tile))
    device.sample_rows[(batch * groups,)](
        logits, u, p, codes, vocab, draws, groups, u.stride(0), u.stride(1),
        float(temperature), top_k if top_k < vocab else 0, float(top_p), BELOW_ONE,
        NUCLEUS=top_p < 1, N=tiles, W=tile, num_warps=min(32, max(4, tiles)),
    )  # fmt: skip
    return p, codes


@sampled.register_fake
def _(logits: Tensor, u: Tensor, *_: float) -> tuple[Tensor, Tensor]:
    batch, groups, _vocab = logits.shape
    return torch.empty_like(logits), logits.new_empty(batch, groups, u.shape[-1], dtype=torch.long)
