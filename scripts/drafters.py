"""Runs of `study=drafters` beside what the model card says of each drafter's training: what a
drafter is worth for what it cost.

    python -m scripts.drafters RUN [RUN ...] [weights=DIR] [out=DIR]

weights: the folder whose models.json describes the drafters (default: the large embedded model's);
out: where drafters.csv, drafters.md and drafters.svg go (default: drafters/ in the current folder).
A decoder of a run is the drafter whose name its own begins with, as in `eagle3_tree_pp`.

Overlap by depth is held-out, from the card. Calibration is of the run: the codes a forward that the
drafter's own law promised over those that came. Minutes are of a training's process alone where the
card counts them (`cpu_seconds`), and of the training that it started from.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from bench.__main__ import answered
from bench.config.words import with_folders
from bench.console import say
from bench.data.errors import ConfigError
from bench.data.files import write_text
from bench.records.load import load
from bench.records.run_data import Entry, RunData
from bench.report.table import Column, csv_text, figures, filled, intervals, markdown, terminal

KEYS = ("weights", "out")
UNTRAINED = ("early_exit",)
DEPTHS = (1, 2, 4, 8)


def main(words: Sequence[str]) -> int:
    """Prints the table. 2 where it cannot, with what to do."""
    return answered(report, words)


def report(words: Sequence[str]) -> int:
    """Raises ConfigError, FolderError."""
    from decoders.models.weights import read_json
    from decoders.tiny.bundle import CARD, shipped

    folders, settings = with_folders(words, KEYS, "drafters")
    if not folders:
        raise ConfigError("expected a run, found none; write `drafters RUN`")
    weights = Path(settings["weights"]) if "weights" in settings else shipped("large")
    out = Path(settings.get("out", "drafters"))
    card = read_json(weights / CARD)
    lines = ranked([line for folder in folders for line in rows(load(folder), card, weights)])
    if not lines:
        raise ConfigError(
            f"no decoder of {' or '.join(map(str, folders))} has a name that begins with a "
            f"drafter of {weights / CARD}; make one with `bench run study=drafters`"
        )
    table = filled(COLUMNS, lines)
    say(terminal(table))
    out.mkdir(parents=True, exist_ok=True)
    write_text(out / "drafters.csv", csv_text(lines))
    write_text(out / "drafters.md", markdown(table) + "\n")
    draw(lines, out / "drafters.svg")
    say(f"written: {out}")
    return 0


def rows(run: RunData, card: Mapping[str, Any], weights: Path) -> list[dict[str, Any]]:
    """A line of every drafter and of every way in which the run used it."""
    names = sorted([*UNTRAINED, *card], key=len, reverse=True)
    found = []
    for section in run.sections:
        for entry in section.decoders:
            name = next((n for n in names if entry.name.startswith(f"{n}_")), None)
            if name is None or entry.failed:
                continue
            found.append(_line(run, entry, name, card, weights))
    return found


def ranked(lines: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """By use, in the order in which they came; the fastest first."""
    uses = list(dict.fromkeys(line["use"] for line in lines))
    return sorted(lines, key=lambda line: (uses.index(line["use"]), -line["speedup"].value))


def _line(
    run: RunData, entry: Entry, name: str, card: Mapping[str, Any], weights: Path
) -> dict[str, Any]:
    trained = card.get(name, {}).get("figures", {})
    made, promised = entry.number("mal"), entry.number("mal_expected")
    return {
        "drafter": name,
        "use": entry.name.removeprefix(f"{name}_"),
        "parameters": parameters(weights / f"{name}.safetensors") if name in card else 0,
        "minutes": minutes(name, card) if name in card else 0.0,
        **{f"overlap_{d}": trained.get(f"valid_overlap_{d}", math.nan) for d in DEPTHS},
        "codes_per_forward": made,
        "calibration": promised / made,
        "call_ms": run.roofline.get(entry.name, {}).get("draft_ms", math.nan),
        "speedup": entry.interval("speedup"),
        "verdict": entry.word,
    }


def minutes(name: str, card: Mapping[str, Any]) -> float:
    """Of a drafter's training, and of that of the drafter it started from."""
    entry = card[name]
    seconds = float(entry["figures"].get("cpu_seconds", entry["figures"]["seconds"]))
    return seconds / 60 + (minutes(entry["start"], card) if "start" in entry else 0.0)


def parameters(path: Path) -> int:
    """Of the drafter's own file: what it borrows of the target is not in it."""
    from decoders.models.weights import opened_file

    with opened_file(path) as file:
        shapes = [file.get_slice(name).get_shape() for name in file.keys()]  # noqa: SIM118
    return sum(math.prod(shape) for shape in shapes)


COLUMNS = (
    Column("drafter", "drafter", words=True),
    Column("use", "use", words=True),
    Column("parameters", "parameters", lambda n: f"{n / 1e6:.1f} M"),
    Column("minutes", "minutes", figures(0)),
    *(Column(f"overlap_{d}", f"overlap {d}", figures(3)) for d in DEPTHS),
    Column("codes_per_forward", "codes per forward", figures(2)),
    Column("calibration", "expected / came", figures(2)),
    Column("call_ms", "ms per call", figures(2)),
    Column("speedup", "speed-up", intervals(2)),
    Column("verdict", "verdict", words=True),
)


def draw(lines: Sequence[Mapping[str, Any]], path: Path) -> None:
    """Speed-up over minutes of training: a panel for every use that two drafters have."""
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    every = [line["use"] for line in lines]
    uses = [use for use in dict.fromkeys(every) if every.count(use) > 1] or every[:1]
    figure, axes = plt.subplots(1, len(uses), figsize=(3.2 * len(uses), 3), sharey=True)
    for axis, use in zip([axes] if len(uses) == 1 else axes, uses, strict=True):
        for line in (one for one in lines if one["use"] == use):
            found = line["speedup"]
            axis.plot([line["minutes"]] * 2, [found.lo, found.hi], color="0.6", linewidth=1)
            axis.plot(line["minutes"], found.value, "o", color="C0")
            axis.annotate(line["drafter"], (line["minutes"], found.value), fontsize=8)
        axis.set(title=use, xlabel="minutes of training")
        axis.spines[["top", "right"]].set_visible(False)
    figure.axes[0].set_ylabel("speed-up over AR")
    figure.tight_layout()
    figure.savefig(path)
    plt.close(figure)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
