"""`python -m bench steps`: what the pieces of a step cost on this machine."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from bench.console import say
from bench.report.table import Column, figures, filled, percent, terminal

if TYPE_CHECKING:
    from bench.cost.rates import MachineRates
    from bench.cost.steps import StepCost


def _share(value: float) -> str:
    return percent(value, 0)


COLUMNS = (
    Column("step", "step (batch 1)"),
    Column("ms", "ms", figures(2)),
    Column("spread", "spread", _share),
    Column("products_ms", "products alone, ms", figures(2)),
    Column("factor", "factor", figures(2)),
    Column("outside_products", "outside products", _share),
    Column("outside_products_and_attention", "outside these and attention", _share),
    Column("ar_steps", "AR steps", figures(2)),
    Column("bytes", "MB", figures(1, 1e-6)),
    Column("operations", "Mflop", figures(1, 1e-6)),
    Column("floor_ms", "floor, ms", figures(3)),
    Column("over_floor", "over floor", figures(1)),
    Column("fast_over_floor", "fastest tenth over floor", figures(1)),
)


def cmd_steps(words: Sequence[str]) -> int:
    """What a decoding step costs here, its matrix products alone, and its floor.
    Times an AR step, verifications of the study's trees and a drafter call of its model. Writes
    steps.csv to run_dir.
    Settings: run_dir ...
        model=NAME    the model (`list model`)
        backend=NAME  where it runs
    Example: steps backend=cpu_torch
    """
    import torch

    from bench.config.compose import compose_study
    from bench.config.plugins import tree_sizes
    from bench.cost.machine import measure_rates
    from bench.cost.steps import TABLE, step_costs, step_table
    from bench.cost.work import Unknown, step_bytes, target_net
    from bench.data.files import ready_folder
    from bench.records.schema import write_text
    from bench.run.session import opened

    config = compose_study(words)
    ready_folder(Path(config.run_dir))
    own = opened(config, 1)
    model, made = own.model, own.made
    net, rates = target_net(model), None
    if not isinstance(net, Unknown):
        name = made.gpu or made.cpu
        rates = measure_rates(model.device, model.dtype, step_bytes(net, model), name)
    with torch.inference_mode():
        text = model.text.encode([own.prompts[0].text])
        nodes = (1, *(size + 1 for size in tree_sizes(config.decoders)))
        costs = step_costs(model, model.sampling, text, nodes)
    found = step_table(costs, rates)
    say(terminal(filled(COLUMNS, found.to_dict("records"))))
    for note in notes(costs, rates):
        say(note)
    path = write_text(Path(config.run_dir) / TABLE, found.to_csv(index=False))
    say(f"saved: {path}")
    return 0


def notes(costs: list[StepCost], rates: MachineRates | None) -> list[str]:
    """The machine, what has no floor, and a warning where it was not quiet."""
    from bench.cost.rates import NOISY
    from bench.cost.work import Unknown

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
