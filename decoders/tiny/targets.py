"""The targets that predict several codes a forward, and their control, a line each: small, of one
size, with the embedded tokenizer and text encoder. They are trained when they are named
(`python -m bench train recipe=tiny stages=[par]`). No torch here."""

from __future__ import annotations

from typing import Any

# Title in the model card, and fields of `decoders.models.grouped.GroupedConfig`. Four codes a
# forward, each.
TARGETS: dict[str, tuple[str, dict[str, Any]]] = {
    "plain": ("next code, the control", {}),
    "par": ("PAR: 2 x 2 regions", {"order": "regions", "span": 2}),
    "saic": ("the next 4 codes at once", {"span": 4}),
    "coral": ("COrAL: the next 4 codes at once, refined once", {"span": 4, "refines": True}),
}
