"""The costs of steps as a table: steps.csv in a study's folder."""

from __future__ import annotations

import math
from pathlib import Path

import pandas as pd

from bench.measure.rates import MachineRates
from bench.measure.roofline import Unknown, Work
from bench.measure.steps import StepCost
from bench.records.schema import write_text

TABLE = "steps.csv"


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
    return write_text(folder / TABLE, table.to_csv(index=False))
