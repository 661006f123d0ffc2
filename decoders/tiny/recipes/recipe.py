"""What the stages of a recipe share: where files are, how a part is trained, and models.json, which
says of every part what it was trained on, for how long and how good it is."""

from __future__ import annotations

import json
import os
import platform
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
from torch import nn

from decoders.kinds import Amount, Seed, fitted, require
from decoders.models.weights import read_json, write_tensors
from decoders.tiny.bundle import CARD, TRAINED_WITH, load_part
from decoders.training.trainer import TrainConfig


@dataclass(frozen=True)
class Recipe:
    """The settings of conf/recipe_config.yaml, which explains them. train: by name, the fields of
    `TrainConfig`. Raises DecoderError."""

    work: Path
    weights: Path
    train: dict[str, dict[str, Any]]
    seed: Seed = 0
    steps: Amount | None = None

    def __post_init__(self) -> None:
        require(self, "")
        for name in ("work", "weights"):
            object.__setattr__(self, name, Path(getattr(self, name)))

    def config(self, name: str) -> TrainConfig:
        """How a part is trained. `steps` comes before the recipe's own."""
        given = self.train[name] | {"seed": self.seed}
        if self.steps is not None:
            given |= {"steps": self.steps, "budget_seconds": None}
        config: TrainConfig = fitted(f"train.{name}", given, TrainConfig)
        return config

    def card(self) -> dict[str, Any]:
        """The entries of the parts that are written; DecoderError where there are none."""
        return read_json(self.weights / CARD)

    def part(self, name: str) -> Any:
        """A written part, frozen."""
        return load_part(self.weights, self.card(), name)[0]

    def write(
        self,
        config: TrainConfig,
        parts: Mapping[str, tuple[nn.Module, Any]],
        about: Mapping[str, Any],
        dtype: torch.dtype = torch.bfloat16,
    ) -> None:
        """Writes the weights of the parts that a stage made (module, and its shape: a dataclass or
        a mapping) and their entries, all at once; other entries stay. about: data and figures."""
        path = self.weights / CARD
        card = self.card() if path.exists() else {}
        machine = f"{platform.machine()}, {os.cpu_count()} cores, torch {torch.__version__}"
        for name, (module, shape) in parts.items():
            file = self.weights / f"{name}.safetensors"
            sha256 = write_tensors(module.state_dict(), file, dtype)
            shape = shape if isinstance(shape, dict) else asdict(shape)
            card[name] = {"config": shape, "sha256": sha256, "settings": asdict(config)}
            card[name] |= {"trained_on": machine, **about}
        for name in parts:
            card[name]["trained_with"] = {part: card[part]["sha256"] for part in TRAINED_WITH[name]}
        partial = path.with_suffix(".partial")
        partial.write_text(json.dumps(card, indent=1, sort_keys=True) + "\n")
        partial.replace(path)
