"""B_k(x): the k codes nearest to x in the codebook's latent space, x itself excluded (METHODS 2).

Only k + 1 columns are kept, as int32: 65 MB at V = 16384 and k = 1000, where the released table of
all V - 1 neighbours takes 512 MiB. The extra column serves `residual: released`, which touches k +
1.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from decoders.api import DecoderError

ROWS = 2048  # codes a chunk, which bounds the memory of the distance matrix


def neighbour_table(codebook: Tensor, k: int) -> Tensor:
    """codebook [V, C] float -> [V, min(k + 1, V - 1)] int32, nearest first, lowest index on
    ties."""
    size = codebook.shape[0]
    if not 1 <= k <= size - 1:
        raise DecoderError(
            f"acceptance.k must be in 1..{size - 1} (the codebook has {size} codes, a "
            f"code is not its own neighbour), found {k}; {'raise' if k < 1 else 'lower'} it"
        )
    table = codebook.float()
    columns = min(k + 1, size - 1)
    parts = []
    for first in range(0, size, ROWS):
        distance = torch.cdist(
            table[first : first + ROWS], table, compute_mode="donot_use_mm_for_euclid_dist"
        )  # [rows, V]
        own = torch.arange(first, first + len(distance), device=table.device)
        distance.scatter_(1, own[:, None], float("inf"))
        if columns * 4 < size:
            near = distance.topk(columns, largest=False, sorted=True)
            parts.append(near.indices.int())
        else:
            parts.append(distance.argsort(dim=1, stable=True)[:, :columns].int())
    return torch.cat(parts)


def latent_space(codebook: Tensor, raw: Tensor | None, metric: str) -> Tensor:
    """The vectors in which distance is measured: the tokenizer's own metric, or the raw rows that
    the released tables were built from."""
    if metric == "tokenizer":
        return codebook
    if metric == "raw":
        if raw is None:
            raise DecoderError(
                "metric=raw: this tokenizer has no raw codebook; use metric=tokenizer"
            )
        return raw
    if metric == "cosine":
        return F.normalize(codebook.float(), dim=-1)
    raise DecoderError(f"acceptance.metric is 'tokenizer', 'raw' or 'cosine', found {metric!r}")
