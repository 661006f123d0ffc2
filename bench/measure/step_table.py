"""The costs of steps as a table: steps.csv in a study's folder, and the lines of `bench steps`."""

from __future__ import annotations

import math
from pathlib import Path

import pandas as pd

from bench.measure.rates import NOISY, MachineRates
from bench.measure.roofline import Unknown, Work
from bench.measure.steps import StepCost
from bench.records.schema import write_atomically

TABLE = "steps.csv"
HEADERS = [
    "step (batch 1)", "ms", "spread", "products alone, ms", "factor", "outside products",
    "outside these and attention", "AR steps", "MB", "Mflop", "floor, ms", "over floor",
    "fastest tenth over floor",
]  # fmt: skip


def step_table(costs: list[StepCost], rates: MachineRates | None) -> pd.DataFrame:
    """One row a step, as steps.csv holds it: milliseconds, bytes, operations, shares of one."""
    rows = []
    for cost in costs:
        work, floor = cost.work, cost.floor_ms(rates)
        rows.append(
            {
                "step": cost.name,
                "codes": cost.nodes,
                "steps_a_call": cost.steps,
                "ms": cost.step_ms,
                "spread": cost.spread,
                "products_ms": cost.products_ms,
                "factor": cost.factor,
                "outside_products": cost.outside,
                "outside_products_and_attention": cost.beside,
                "ar_steps": cost.step_ms / costs[0].step_ms,
                "bytes": work.bytes if isinstance(work, Work) else math.nan,
                "operations": work.operations if isinstance(work, Work) else math.nan,
                "floor_ms": floor,
                "over_floor": cost.step_ms / floor,
                "fast_ms": cost.fast_ms,
                "fast_over_floor": cost.fast_ms / floor,
                "note": str(work) if isinstance(work, Unknown) else "",
            }
        )
    table = pd.DataFrame(rows)
    for name in ("bytes_per_s", "large_bytes_per_s", "operations_per_s", "threads", "device"):
        table[name] = math.nan if rates is None else getattr(rates, name)
    return table


def save_steps(table: pd.DataFrame, folder: Path) -> Path:
    """Writes steps.csv into a study's folder, which may not have been run yet; returns its path."""
    path, text = folder / TABLE, table.to_csv(index=False).encode()
    write_atomically(path, lambda file: file.write(text))
    return path


def cells(table: pd.DataFrame) -> list[list[str]]:
    """The rows of a step table for the terminal, under HEADERS; a dash where nothing is known."""
    figures = (
        ("ms", 1, ".2f"), ("spread", 100, ".0f"), ("products_ms", 1, ".2f"), ("factor", 1, ".2f"),
        ("outside_products", 100, ".0f"), ("outside_products_and_attention", 100, ".0f"),
        ("ar_steps", 1, ".2f"), ("bytes", 1e-6, ".1f"), ("operations", 1e-6, ".1f"),
        ("floor_ms", 1, ".3f"), ("over_floor", 1, ".1f"), ("fast_over_floor", 1, ".1f"),
    )  # fmt: skip

    def text(value: float, scale: float, form: str) -> str:
        percent = " %" if scale == 100 else ""
        return "—" if math.isnan(value) else format(scale * value, form) + percent

    return [
        [str(row["step"]), *(text(float(row[name]), scale, form) for name, scale, form in figures)]
        for row in table.to_dict("records")
    ]


def notes(costs: list[StepCost], rates: MachineRates | None) -> list[str]:
    """The machine, what has no floor, and a warning where it was not quiet."""
    lines = [] if rates is None else [str(rates)]
    lines += dict.fromkeys(f"{c.name}: {c.work}" for c in costs if isinstance(c.work, Unknown))
    noisy = [f"{c.name} {100 * c.spread:.0f} %" for c in costs if c.noisy]
    if rates is not None and rates.noisy:
        noisy.append(f"the machine's rates {100 * rates.spread:.0f} %")
    if noisy:
        lines.append(
            f"noisy machine: repeats lie more than {100 * NOISY:.0f} % of their median apart "
            f"({', '.join(noisy)}); something else runs here, measure again when it does not"
        )
    return lines
