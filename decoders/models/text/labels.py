"""Class numbers as prompts: what LlamaGen's class-conditional models are told to draw."""

from __future__ import annotations

import re

import torch

from decoders.api import DecoderError, TextFeatures

NUMBER = re.compile(r"[0-9]+")


class LabelEncoder:
    """`decoders.api.TextEncoder` of a class-conditional model: "207" -> 207."""

    def __init__(self, classes: int = 1000, device: torch.device | str = "cpu") -> None:
        self.classes, self.device = classes, torch.device(device)

    def encode(self, prompts: list[str]) -> TextFeatures:
        """Class numbers -> features [B, 1] int64, mask [B, 1] all valid. Raises DecoderError on
        what is not a whole number below `classes`."""
        if not prompts:
            raise DecoderError("no prompts given: expected at least one class number")
        rows = [[self._label(prompt)] for prompt in prompts]
        features = torch.tensor(rows, dtype=torch.long, device=self.device)  # [B, 1]
        return TextFeatures(features, torch.ones_like(features, dtype=torch.bool))

    def _label(self, prompt: str) -> int:
        text = prompt.strip()
        if not NUMBER.fullmatch(text) or int(text) >= self.classes:
            raise DecoderError(
                f"this model draws classes: expected a number from 0 to {self.classes - 1}, found "
                f"{prompt!r}; use prompts=classes"
            )
        return int(text)
