"""What the embedded weights were trained on, for how long, how good they are: entries of
``models.json``, and the model card.

The card is written from the entries, never by hand.
"""

from __future__ import annotations

import json
import os
import platform
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch

from decoders.tiny.bundle import CARD, TRAINED_WITH
from decoders.tiny.recipes.plan import Plan
from decoders.tiny.targets import TARGETS
from decoders.training.trainer import TrainConfig

CARD_NAME = "MODEL_CARD.md"
TITLES = {
    "vq": "VQ tokenizer (LlamaGen's architecture)",
    "text": "Text encoder (words; learned to read, then trained with the target)",
    "target": "Target (LlamaGen's architecture)",
    "eagle": "Drafter (EAGLE, one layer)",
    "eagle3": "Drafter (EAGLE-3: features of three layers)",
    **{name: f"Target, small ({title})" for name, (title, _) in TARGETS.items()},
    "clip": "CLIP of the metrics (open_clip)",
}


def enter(plan: Plan, entries: dict[str, dict[str, Any]], config: TrainConfig) -> None:
    """Adds the entries of the parts that a stage made, and how it was trained, to the card, all at
    once; the others stay."""
    path = plan.weights / CARD
    card = json.loads(path.read_text()) if path.exists() else {}
    trained_on = f"{platform.machine()}, {os.cpu_count()} cores, torch {torch.__version__}"
    card |= entries
    for name in entries:
        card[name] |= {
            "settings": asdict(config),
            "trained_on": trained_on,
            "trained_with": {part: card[part]["sha256"] for part in TRAINED_WITH[name]},
        }
    partial = path.with_suffix(".partial")
    partial.write_text(json.dumps(card, indent=1, sort_keys=True) + "\n")
    partial.replace(path)


def write_card(weights: Path) -> None:
    """Writes MODEL_CARD.md from the entries."""
    entries: dict[str, Any] = json.loads((weights / CARD).read_text())
    lines = [
        "# The embedded models",
        "",
        "Written by `make tiny`; do not edit. Data: procedural scenes (`decoders/tiny/scenes/`),",
        "64 x 64 pixels with captions. Splits are disjoint by seed; held-out figures are from",
        "`valid`. The target's loss is in nats per code; `uncond` is without the caption.",
        "`overlap` is the mean of sum min(p, q) under guidance: the share of single drafts that",
        "the exact rule accepts. `naming` is the share of attributes, those not mentioned",
        "included, that a probe reads from the target's states.",
        "",
    ]
    for name in (n for n in TITLES if n in entries):
        lines += [f"## {TITLES[name]}", "", *_entry(name, entries[name], weights), ""]
    (weights / CARD_NAME).write_text("\n".join(lines))


def _entry(name: str, entry: dict[str, Any], weights: Path) -> list[str]:
    file = entry.get("file", f"{name}.safetensors")
    rows = [("file", f"`{file}`, {(weights / file).stat().st_size / 2**20:.1f} MiB")]
    rows += [
        (k, f"`{entry[k]}`" if k == "sha256" else str(entry[k]))
        for k in ("sha256", "data", "start", "trained_on", "settings")
        if k in entry
    ]
    figures = entry.get("figures", {})
    for key, value in figures.items():
        if isinstance(value, dict):
            rows += [(f"{key}: {k}", _number(v)) for k, v in value.items()]
        else:
            rows.append((key, _number(value)))
    return ["| | |", "|---|---|", *(f"| {k} | {v} |" for k, v in rows)]


def _number(value: Any) -> str:
    return (
        f"{value:.4g}"
        if isinstance(value, float) and value < 1e4
        else str(round(value) if isinstance(value, float) else value)
    )
