"""What the embedded weights were trained on, for how long, how good they are: entries of
``models.json``, and the model card.

The card is written from the entries, never by hand; the loss curves are drawn from the recipes' CSV
files.
"""

from __future__ import annotations

import csv
import json
import os
import platform
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch

from decoders.tiny.bundle import CARD, STAGE_OF, TRAINED_WITH
from decoders.tiny.recipes.plan import MINUTES, NAMED, Plan
from decoders.tiny.targets import TARGETS

CARD_NAME = "MODEL_CARD.md"
HELD_OUT = {"held_chain_length": "held-out codes a forward", "valid_nats": "held-out nats"}
TITLES = {
    "vq": "VQ tokenizer (LlamaGen's architecture)",
    "text": "Text encoder (words; learned to read, then trained with the target)",
    "target": "Target (LlamaGen's architecture)",
    "eagle": "Drafter (EAGLE, one layer)",
    "eagle3": "Drafter (EAGLE-3: features of three layers)",
    **{name: f"Target, small ({title})" for name, (title, _) in TARGETS.items()},
    "clip": "CLIP of the metrics (open_clip)",
}


def enter(plan: Plan, entries: Mapping[str, dict[str, Any]]) -> None:
    """Adds the entries of the parts that a stage made, and the settings of its training, to the
    card, all at once; the others stay."""
    path = plan.weights / CARD
    card = json.loads(path.read_text()) if path.exists() else {}
    trained_on = f"{platform.machine()}, {os.cpu_count()} cores, torch {torch.__version__}"
    before = card if plan.warm else {}
    for name, entry in entries.items():
        figures = entry["figures"]
        if name in before:
            figures = _added(before[name]["figures"], figures)
        settings = plan.settings(STAGE_OF.get(name, name))
        settings = settings | {"warm": plan.warm, "rate": plan.rate}
        made = {**card, **entries}
        others = {part: made[part]["sha256"] for part in TRAINED_WITH[name]}
        card[name] = entry | {
            "figures": figures,
            "settings": settings,
            "trained_on": trained_on,
            "trained_with": others,
        }
    partial = path.with_suffix(".partial")
    partial.write_text(json.dumps(card, indent=1, sort_keys=True) + "\n")
    partial.replace(path)


def _added(before: dict[str, Any], figures: dict[str, Any]) -> dict[str, Any]:
    """Figures of a training that went on from another: what was spent counts together, and what was
    not measured again stays."""
    spent = ("images", "steps", "seconds")
    sums = {key: before.get(key, 0) + figures[key] for key in spent if key in figures}
    return before | figures | sums


def write_card(weights: Path, work: Path) -> None:
    """Writes MODEL_CARD.md, and a picture of whatever curves `work` holds."""
    entries: dict[str, Any] = json.loads((weights / CARD).read_text())
    lines = [
        "# The embedded models",
        "",
        "Written by `make tiny`; do not edit. Data: procedural scenes (`decoders/tiny/scenes/`),",
        "64 x 64 pixels with captions. Splits are disjoint by seed; held-out figures are from",
        "`valid`. The target's loss is in nats per code; `uncond` is without the caption.",
        "`overlap` is the mean of sum min(p, q) under guidance: the share of single drafts that",
        "the exact rule accepts. `naming` is the share of attributes, those not mentioned",
        "included, that a probe reads from the target's states. `warm`: trained on from earlier",
        "weights, whose images and seconds are included. `curves.png` shows the last training of",
        "each part.",
        "",
    ]
    for name in (n for n in TITLES if n in entries):
        lines += [f"## {TITLES[name]}", "", *_entry(name, entries[name], weights), ""]
    (weights / CARD_NAME).write_text("\n".join(lines))
    draw_curves(work, weights / "curves.png")


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


def draw_curves(work: Path, path: Path) -> None:
    """Training loss against step of each recipe's last training, where it left a curve, and the
    held-out figure (points, the right axis)."""
    curves = {
        name: max(files, key=lambda file: file.stat().st_mtime)
        for name in (*MINUTES, *NAMED)
        if (files := list((work / name).rglob("*.csv")))
    }
    if not curves:
        return
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    columns = min(5, len(curves))
    shape = -(-len(curves) // columns), columns
    figure, axes = plt.subplots(*shape, figsize=(3.6 * shape[1], 2.8 * shape[0]), squeeze=False)
    for axis in axes.flat[len(curves) :]:
        axis.remove()
    for axis, (name, file) in zip(axes.flat, curves.items(), strict=False):
        with file.open() as handle:
            rows = list(csv.DictReader(handle))
        axis.plot(*_points(rows, "loss"), linewidth=1)
        axis.set(title=name, xlabel="step", ylabel="training loss")
        axis.spines[["top", "right"]].set_visible(False)
        for held, label in HELD_OUT.items():
            if any(row.get(held) for row in rows):
                right = axis.twinx()
                right.plot(*_points(rows, held), "o-", color="C1", linewidth=1, markersize=3)
                right.set_ylabel(label, color="C1")
    figure.tight_layout()
    figure.savefig(path, dpi=110)
    plt.close(figure)


def _points(rows: Sequence[Mapping[str, str]], name: str) -> tuple[list[float], list[float]]:
    """Steps and values of a column, where it has any."""
    kept = [row for row in rows if row.get(name)]
    return [float(row["step"]) for row in kept], [float(row[name]) for row in kept]
