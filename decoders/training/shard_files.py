"""Shard files: the states of some images as tensors, one row an image.

Layout (safetensors): `codes` [n, L] int64, `hidden` [n, G, P + L - 1, D] in the target's dtype, G
rows an image (2: with and without its caption), `drop` [n, G] bool, and the caption as the model
reads it: `features`, `mask`, and where it has them `uncond`, `uncond_mask`.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import torch
from torch import Tensor

from decoders.api import DecoderError, TextFeatures
from decoders.training.states import Images, States

TEXT = ("features", "mask", "uncond", "uncond_mask")


def join(parts: Sequence[States]) -> States:
    """States of several groups of images as one, rows in order."""
    return unpack({k: torch.cat([pack(p)[k] for p in parts]) for k in pack(parts[0])}, None)


def pack(states: States) -> dict[str, Tensor]:
    """One entry an image: codes [B, L], hidden [B, G, T, D], drop [B, G], and the text."""
    copies, text = states.copies, states.images.text
    found = {name: getattr(text, name) for name in TEXT}
    return {
        "codes": states.images.codes,
        "hidden": torch.stack(states.hidden.chunk(copies), 1),
        "drop": torch.stack(states.drop.chunk(copies), 1),
        **{name: value for name, value in found.items() if value is not None},
    }


def unpack(packed: dict[str, Tensor], device: torch.device | None) -> States:
    """The states of what `pack` made, on `device` (None: where they are)."""
    moved = packed if device is None else {k: v.to(device) for k, v in packed.items()}
    text = TextFeatures(**{name: moved[name] for name in TEXT if name in moved})
    hidden = torch.cat(moved["hidden"].unbind(1))  # [G B, T, D]
    return States(Images(text, moved["codes"]), hidden, torch.cat(moved["drop"].unbind(1)))


def stack(rows: list[dict[str, Tensor]]) -> dict[str, Tensor]:
    """Single images as `pack` lays them out."""
    return {k: torch.stack([row[k] for row in rows]) for k in rows[0]}


def read_row(path: Path, row: int) -> dict[str, Tensor]:
    """One image of a shard file; the rest of the file is not read. Raises DecoderError."""
    from safetensors import SafetensorError, safe_open

    try:
        with safe_open(path, framework="pt") as file:
            return {name: file.get_slice(name)[row] for name in file.keys()}  # noqa: SIM118
    except (FileNotFoundError, SafetensorError) as error:
        raise DecoderError(
            f"the shard {path} cannot be read ({error}); remove it and start again: it is "
            "computed anew"
        ) from error
