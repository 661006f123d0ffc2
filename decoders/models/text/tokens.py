"""What prompts of Llama-shaped models share: reading tokenizer.json, padding on the left."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from decoders.models.weights import read_json


def read_tokenizer(path: Path) -> Any:
    """The tokenizer of a tokenizer.json. Raises DecoderError where it is no JSON."""
    from tokenizers import Tokenizer

    read_json(path)  # a clear message where it is no JSON
    return Tokenizer.from_file(str(path))


def left_padded(
    rows: Sequence[list[int]], length: int, device: torch.device
) -> tuple[Tensor, Tensor]:
    """Token ids and validity, both [B, length]; ids on the padding are 0 and never read."""
    ids = torch.zeros(len(rows), length, dtype=torch.long)
    mask = torch.zeros(len(rows), length, dtype=torch.bool)
    for row, tokens in enumerate(rows):
        ids[row, -len(tokens) :] = torch.tensor(tokens)
        mask[row, -len(tokens) :] = True
    return ids.to(device), mask.to(device)
