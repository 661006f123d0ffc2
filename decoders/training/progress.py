"""What survives a killed training: one checkpoint, replaced atomically, and the curve as CSV."""

from __future__ import annotations

import csv
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import nn

from decoders.api import DecoderError

CHECKPOINT, CURVE = "training.ckpt", "curve.csv"


@dataclass
class Saved:
    """steps done, seconds spent, the settings that decide the weights, and the curve so far."""

    step: int
    seconds: float
    settings: dict[str, Any]
    history: list[dict[str, float]]


def write_saved(folder: Path, saved: Saved, net: nn.Module, optims: list[Any]) -> None:
    """Writes the checkpoint; the last one stays until the new one is whole."""
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / CHECKPOINT
    partial = path.with_suffix(".partial")
    state = {
        "step": saved.step,
        "seconds": saved.seconds,
        "settings": saved.settings,
        "history": saved.history,
        "net": net.state_dict(),
        "optimisers": [o.state_dict() for o in optims],
    }
    torch.save(state, partial)
    partial.replace(path)


def read_saved(
    folder: Path, settings: dict[str, Any], net: nn.Module, optims: list[Any]
) -> Saved | None:
    """Loads the checkpoint of `folder` into net and optimisers; None if there is no file.

    Raises DecoderError where it is of a run with other settings, or cannot be read.
    """
    path = folder / CHECKPOINT
    if not path.exists():
        return None
    try:
        state = torch.load(path, weights_only=True, map_location="cpu")
    except (RuntimeError, EOFError) as error:
        raise DecoderError(
            f"{path} cannot be read ({error}); remove it to start the training again"
        ) from error
    found = state["settings"]
    other = [
        f"{k}: {found.get(k)} there, {settings.get(k)} now"
        for k in {**found, **settings}
        if found.get(k) != settings.get(k)
    ]
    if other:
        raise DecoderError(
            f"{path} is of a run with other settings ({'; '.join(other)}); choose another folder, "
            "set train.resume=false to start again, or keep the settings"
        )
    net.load_state_dict(state["net"])
    for optimiser, values in zip(optims, state["optimisers"], strict=True):
        optimiser.load_state_dict(values)
    return Saved(int(state["step"]), float(state["seconds"]), found, state["history"])


def write_curve(folder: Path, history: list[dict[str, float]]) -> Path:
    """The curve: `step`, `seconds`, the loss and its parts; `held_*` where it was evaluated."""
    names = list(dict.fromkeys(k for row in history for k in row))
    path = folder / CURVE
    with path.open("w", newline="") as file:
        writer = csv.DictWriter(file, fieldnames=names)
        writer.writeheader()
        writer.writerows(history)
    return path
