"""The comparison as terminal text, peers.csv and peers.md, every row with what it was made with."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from bench.config.schema import StudyConfig
from bench.measure.device import Provenance
from bench.peers.check import Proof
from bench.peers.result import Row, headlines, words
from bench.records.schema import write_text
from bench.report import table
from bench.report.plain import code_columns, machine_columns, place, setting_columns
from bench.report.table import Column, figures, intervals

COLUMNS = (
    Column("", "decoder", lambda row: f"{row.name} (ours)" if row.engine == "ours" else row.name),
    Column("", "s/image", lambda row: "failed" if row.failed else table.interval(row.seconds, 3)),
    Column("", "its time / our AR's", lambda row: _over_ar(row)),
    Column("same_drafter", "its time / ours, same drafter", intervals(2)),
    Column("forwards", "target forwards", figures(1)),
    Column("drafter", "drafter", lambda name: name or table.ABSENT),
    Column("compile_seconds", "compiling, s", figures(1)),
)
LEGEND = (
    "[a, b]: 95 % interval over prompts. Times: prefill and decoding of one image, in turns on the "
    "same prompts; a ratio above 1 means that ours is faster. Target forwards: an image's, the "
    "prefill counted. Compiling: what the first image took beyond a usual one; it is in no ratio. "
    "generate draws with torch's own random numbers, so its images differ from ours, from the same "
    "law. A drafter that appears on one side only has no counterpart: EAGLE drafts from the "
    "target's states, which assisted generation does not hand on."
)


@dataclass(frozen=True)
class Comparison:
    """What a run of `peers` leaves behind."""

    config: StudyConfig
    attention: str
    proof: Proof
    made: Provenance
    weights: Mapping[str, str]
    versions: Mapping[str, str]
    rows: Sequence[Row]

    @property
    def machine(self) -> str:
        gpu = f", {self.made.gpu}" if self.made.gpu else ""
        return (
            f"{place(self.config)}, {self.made.cpu}{gpu}, {self.made.threads} threads, "
            f"transformers {self.versions['transformers']} ({self.attention} attention), "
            f"torch {self.versions['torch']}"
        )


def terminal(made: Comparison) -> str:
    """Tables, what they come to, and how to read them."""
    parts = [made.machine, str(made.proof)]
    for title, rows in _by_mode(made.rows):
        parts.append(table.terminal(table.filled(COLUMNS, rows, title)))
        parts += [f"{row.name} failed: {row.error}" for row in rows if row.failed]
    parts.append("\n".join(f"* {line}" for line in headlines(made.rows)))
    parts.append(LEGEND)
    return "\n\n".join(parts)


def markdown(made: Comparison) -> str:
    """The same as GitHub Markdown, with provenance."""
    parts = ["# Ours beside transformers' generate", made.machine + ".", f"Proof: {made.proof}."]
    for title, rows in _by_mode(made.rows):
        parts += [f"## {title}", table.markdown(table.filled(COLUMNS, rows))]
        parts += [table.bullets([f"{r.name} failed: {r.error}"]) for r in rows if r.failed]
    parts.append("\n".join(f"* {line}" for line in headlines(made.rows)))
    parts.append(LEGEND)
    parts.append("Made with: " + ", ".join(f"{k} {v}" for k, v in _provenance(made).items()))
    return "\n\n".join(parts) + "\n"


def _over_ar(row: Row) -> str:
    return "1.00" if row.baseline and not row.failed else table.interval(row.ratio, 2)


def lines_of(made: Comparison) -> list[dict[str, Any]]:
    """One line a contender and mode, in full precision, provenance in every line."""
    common = _provenance(made) | {
        "versions": json.dumps(dict(made.versions), sort_keys=True),
        "weights_sha256": json.dumps(dict(made.weights), sort_keys=True),
    }
    return [_plain(row) | common for row in made.rows]


def save(made: Comparison, folder: Path) -> list[Path]:
    """peers.csv and peers.md, each whole or absent."""
    return [
        write_text(folder / "peers.csv", table.csv_text(lines_of(made))),
        write_text(folder / "peers.md", markdown(made)),
    ]


def _plain(row: Row) -> dict[str, Any]:
    sampling = row.mode.sampling
    return {
        "mode": row.mode.name, "temperature": sampling.temperature, "cfg": sampling.cfg,
        "top_k": sampling.top_k, "top_p": sampling.top_p, "engine": row.engine,
        "decoder": row.name, "drafter": row.drafter, "baseline": row.baseline,
        "status": "failed" if row.failed else "ok", "error": row.error, "images": row.images,
        "seconds_median": row.median, "target_forwards": row.forwards,
        "compile_seconds": row.compile_seconds, "seconds": row.seconds, "ratio_to_ar": row.ratio,
        "ratio_same_drafter": row.same_drafter,
    }  # fmt: skip


def _provenance(made: Comparison) -> dict[str, Any]:
    return {
        **setting_columns(made.config), "attention": made.attention,
        **machine_columns(made.made), "seed": made.config.seed,
        "torch": made.versions["torch"], "transformers": made.versions["transformers"],
        "largest_logit_difference": made.proof.difference, **code_columns(made.made),
    }  # fmt: skip


def _by_mode(rows: Sequence[Row]) -> list[tuple[str, list[Row]]]:
    found: dict[str, list[Row]] = {}
    for row in rows:
        found.setdefault(words(row.mode), []).append(row)
    return [(title[:1].upper() + title[1:], group) for title, group in found.items()]
