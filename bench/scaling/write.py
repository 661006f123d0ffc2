"""The scaling table as terminal text, scaling.md, scaling.csv and a plot."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from bench.config.schema import StudyConfig
from bench.measure.device import Provenance
from bench.records.schema import write_text
from bench.report import table
from bench.report.plain import code_columns, machine_columns, place, setting_columns
from bench.report.table import Column, figures, intervals
from bench.scaling.cells import Row

RATE = intervals(2)
COLUMNS = (
    Column("batch", "batch"),
    Column("decoder", "decoder"),
    Column("", "images/s", lambda line: "failed" if line["error"] else RATE(line["images_s"])),
    Column("latency_s", "latency, s", intervals(3)),
    Column("", "speed-up at this batch", lambda line: _speedup(line)),
    Column("mal", "MAL", figures(2)),
    Column("forwards_a_call", "forwards a call", figures(1)),
    Column("peak_memory_mb", "peak MB", figures(0)),
)
LEGEND = (
    "[a, b]: 95 % interval over calls. Latency: seconds of prefill and decoding until the whole "
    "batch is done; images/s: batch over latency. Speed-up: the baseline's seconds over the "
    "decoder's, same batch, same prompts, paired. MAL: codes a target forward, mean over rows; "
    "forwards a call: those of its slowest row, which all wait for. Peak MB: on a GPU what was "
    "allocated during a call, model included (not known of CUDA graphs); on a CPU resident memory "
    "of the process."
)


@dataclass(frozen=True)
class Scaling:
    """What a run of `scaling` leaves behind."""

    config: StudyConfig
    made: Provenance
    weights: Mapping[str, str]
    rows: Sequence[Row]

    @property
    def machine(self) -> str:
        made = self.made
        return (
            f"{place(self.config)}, {made.gpu or made.cpu}, {made.threads} threads, torch "
            f"{made.versions['torch']}"
        )


def terminal(scaling: Scaling) -> str:
    """The table, its failures, and how to read it."""
    parts = [scaling.machine, table.terminal(table_of(scaling.rows))]
    parts += [_failure(row) for row in scaling.rows if row.error]
    return "\n\n".join([*parts, LEGEND])


def markdown(scaling: Scaling) -> str:
    """The same as GitHub Markdown."""
    parts = [
        "# Throughput and latency by batch size",
        scaling.machine + ".",
        table.markdown(table_of(scaling.rows)),
    ]
    parts += [table.bullets([_failure(row)]) for row in scaling.rows if row.error]
    parts += [
        LEGEND,
        "Made with: " + ", ".join(f"{k} {v}" for k, v in _provenance(scaling).items()),
    ]
    return "\n\n".join(parts) + "\n"


def table_of(rows: Sequence[Row]) -> table.Table:
    """The rows under `COLUMNS`."""
    return table.filled(COLUMNS, map(_plain, rows))


def _speedup(line: Mapping[str, Any]) -> str:
    own = line["decoder"] == line["baseline"] and not line["error"]
    return "1.00" if own else table.interval(line["speedup"], 2)


def _failure(row: Row) -> str:
    return f"{row.decoder} at batch {row.batch} failed: {row.error}"


def lines_of(scaling: Scaling) -> list[dict[str, Any]]:
    """One line a decoder and batch size, in full precision, provenance in every line."""
    common = _provenance(scaling) | {
        "versions": json.dumps(scaling.made.versions, sort_keys=True),
        "weights_sha256": json.dumps(dict(scaling.weights), sort_keys=True),
    }
    return [_plain(row) | common for row in scaling.rows]


def save(scaling: Scaling, folder: Path) -> list[Path]:
    """scaling.csv, scaling.md, and the plot as .svg and .png, under `folder`."""
    from bench.report.plots.scaling import draw
    from bench.report.plots.style import save as save_plot

    out = [
        write_text(folder / "scaling.csv", table.csv_text(lines_of(scaling))),
        write_text(folder / "scaling.md", markdown(scaling)),
    ]
    return [*out, *save_plot(draw(scaling.rows, scaling.machine), folder)]


def _plain(row: Row) -> dict[str, Any]:
    return {
        "batch": row.batch, "decoder": row.decoder, "temperature": row.temperature,
        "cfg": row.cfg, "status": "failed" if row.error else "ok", "error": row.error,
        "calls": row.calls, "images_s": row.images_s, "latency_s": row.latency,
        "speedup": row.speedup, "baseline": row.rival, "mal": row.mal,
        "forwards_a_call": row.forwards,
        "peak_memory_mb": row.peak_mb,
    }  # fmt: skip


def _provenance(scaling: Scaling) -> dict[str, Any]:
    config, made = scaling.config, scaling.made
    return {
        "study": config.name, **setting_columns(config), **machine_columns(made),
        "seed": config.seed, "torch": made.versions["torch"], **code_columns(made),
    }  # fmt: skip
