"""Which targets' decoding steps may be one call of the CPU kernel, from codes to codes.

Such a call replaces `forward_codes` and `guided_logits` with what they do in `Transformer`, so it
is for targets that have overridden nothing of it; others run through their own methods.
"""

from __future__ import annotations

from typing import Any

from decoders.api import Sampling
from decoders.distribution import filtered
from decoders.kernels.cpu.checks import patched
from decoders.kernels.cpu.layers import NativeLayers
from decoders.kernels.cpu.stepping import Head
from decoders.models.native import Native, active
from decoders.models.transformer import Transformer

REPLACED = ("forward_codes", "token_ids", "embed", "logits", "guided_logits", "new_cache")


def plain(target: Any) -> Native | None:
    """The kernel, where layers and head run in it and nothing of a step's forward is a plug-in's
    own; None with structural codes too."""
    own = active(target)
    if own is None or target.forced is not None:
        return None
    return own if all(_plain(target, name) for name in REPLACED) else None


def _plain(target: Any, name: str) -> bool:
    """Whether a method is the transformer's."""
    own = getattr(type(target), name, None) is getattr(Transformer, name)
    return own and not patched(target, (name,))


def parts_of(target: Any, sampling: Sampling) -> tuple[NativeLayers, Head] | None:
    """The layers of a target, and what stands around them; None where a step is not one call: the
    target is not `plain`, or the distribution is filtered (top-k, top-p)."""
    own = plain(target)
    if own is None or filtered(sampling, target.vocab_size):
        return None
    weight, tokens = target.tok_embeddings.weight, target.code_tokens
    return own.layers, Head(own.project, weight, tokens, target.prefix)
