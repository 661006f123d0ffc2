"""The model card: what the embedded weights were trained on, for how long, how good they are.

Written from ``models.json`` (and ``clip.json``, if the metric's network is there), never by hand;
the loss curves are drawn from the recipes' CSV files.
"""

from __future__ import annotations

import csv
import json
from pathlib import Path
from typing import Any

CARD_NAME = "MODEL_CARD.md"
TITLES = {
    "vq": "VQ tokenizer (LlamaGen's architecture)",
    "text": "Text encoder (words; learned to read, then trained with the target)",
    "target": "Target (LlamaGen's architecture)",
    "eagle": "Drafter (EAGLE, one layer)",
    "clip": "CLIP of the metrics (open_clip)",
}


def write_card(weights: Path, work: Path) -> Path:
    """Writes MODEL_CARD.md, and curves.png from whatever curves `work` holds; returns the card."""
    entries: dict[str, Any] = json.loads((weights / "models.json").read_text())
    lines = [
        "# The embedded models",
        "",
        "Written by `make tiny`; do not edit. Data: procedural scenes (`decoders/tiny/scenes/`),",
        "64 x 64 pixels with captions; splits are disjoint by seed, held-out figures are from",
        "`valid`. The target's loss is in nats a code; `uncond` is without the caption; `overlap`",
        "is the mean of sum min(p, q) under guidance: the share of single drafts that the exact",
        "rule accepts; `naming` is the share of attributes, what is not said counted in, that a",
        "probe reads from the target's states. `warm`: trained on from earlier weights, whose",
        "images and seconds are counted in; `curves.png` shows the last training of each.",
        "`size: large`: grown from the small model, whose images, steps and seconds are counted",
        "in; with `steps: 0` it was not trained since, and `naming` is the small model's.",
        "",
    ]
    for name in (n for n in TITLES if n in entries):
        lines += [f"## {TITLES[name]}", "", *_entry(name, entries[name], weights), ""]
    path = weights / CARD_NAME
    path.write_text("\n".join(lines))
    draw_curves(work, weights / "curves.png")
    return path


def _entry(name: str, entry: dict[str, Any], weights: Path) -> list[str]:
    file = entry.get("file", f"{name}.safetensors")
    rows = [("file", f"`{file}`, {(weights / file).stat().st_size / 2**20:.1f} MiB")]
    rows += [
        (k, f"`{entry[k]}`" if k == "sha256" else str(entry[k]))
        for k in ("sha256", "data", "trained_on", "settings")
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
    """Training loss against step of each recipe's last training, where it left a curve."""
    curves = {
        name: max(files, key=lambda file: file.stat().st_mtime)
        for name in ("vq", "target", "drafter", "clip")
        if (files := list((work / name).rglob("*.csv")))
    }
    if not curves:
        return
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    figure, axes = plt.subplots(1, len(curves), figsize=(3.4 * len(curves), 2.8), squeeze=False)
    for axis, (name, file) in zip(axes[0], curves.items(), strict=True):
        with file.open() as handle:
            rows = [r for r in csv.DictReader(handle) if r.get("loss")]
        axis.plot([float(r["step"]) for r in rows], [float(r["loss"]) for r in rows], linewidth=1)
        axis.set(title=name, xlabel="step", ylabel="training loss")
        axis.spines[["top", "right"]].set_visible(False)
    figure.tight_layout()
    figure.savefig(path, dpi=110)
    plt.close(figure)
