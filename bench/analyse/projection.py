"""What the decoders of a run would gain on another machine, from what a forward costs there:

    speed-up = codes per forward / (cost of its forward + drafting)

in AR steps. Codes per forward are measured; costs are stated by the user, so the result is a
projection and no measurement. Between two numbers of codes whose costs are known a cost lies on a
straight line; a forward of one code costs 1. A forward may cost codes per forward less drafting,
its *break-even cost*, until the decoder is as slow as AR.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np

from bench.analyse.analyse import load
from bench.analyse.figures import cells
from bench.analyse.run import Entry, Role, Run
from bench.config.arguments import listed
from bench.errors import ConfigError, FolderError
from decoders.errors import DecoderError
from decoders.kinds import Count, Positive, validate
from metrics.stats import Interval

Costs = Mapping[int, float]  # of a forward, in AR steps, by its codes
EXAMPLE = "write cost=60:1.2 (codes:AR steps, several with commas), or cost=RUN"


def costs_of(text: str) -> Costs:
    """Reads `60:1.2`, `5:1.1,60:1.2`, or the folder of a run whose forwards were timed, such as one
    of study=gpu_costs. Raises ConfigError."""
    if Path(text).is_dir():
        # A whole step, where a backend runs it as one, stands for a forward that was not timed.
        try:
            lines = sorted(load(Path(text)).lines("forwards"), key=lambda line: not line["whole"])
        except FolderError as error:
            raise ConfigError(f"cost={text}: {error}; {EXAMPLE}") from error
        costs = {line["codes"]: float(line["ar_steps"]) for line in lines}
        costs = {codes: cost for codes, cost in costs.items() if codes > 1 and 0 < cost < math.inf}
        if not costs:
            raise ConfigError(f"cost={text}: this run timed no forward over a draft; {EXAMPLE}")
        return costs | {1: 1.0}
    if ":" not in text:
        raise ConfigError(
            f"cost={text}: expected a run's folder or costs, found neither; {EXAMPLE}"
        )
    pairs = {(1, 1.0)}
    for part in listed(text.strip("{}")):
        codes, _, cost = map(str.strip, part.partition(":"))
        try:
            number = validate("codes", codes, Count, text=True)
            steps = validate("AR steps", cost, Positive, text=True)
        except DecoderError as error:
            raise ConfigError(f"cost={text}: in {part!r} {error}; {EXAMPLE}") from error
        if number == 1 != steps:
            raise ConfigError(
                f"cost={text}: expected sizes above 1 code, each with its cost in AR steps, found "
                f"{part!r}: 1 code costs 1 AR step, the unit; {EXAMPLE}"
            )
        pairs.add((number, steps))
    for (few, less), (many, more) in pairwise(sorted(pairs)):
        if few == many or more < less:
            raise ConfigError(
                f"cost={text}: expected one cost of each size, and no less of a larger one (1:1 is "
                f"the unit), found {few}:{less:g} and {many}:{more:g}; correct one or leave it out"
            )
    return dict(pairs)


def cost_at(costs: Costs, codes: int) -> float:
    """NaN for more codes than a cost is known of."""
    known = sorted(costs)
    if codes > known[-1]:
        return math.nan
    return float(np.interp(codes, known, [costs[one] for one in known]))


def projected(run: Run, costs: Costs) -> Iterator[dict[str, Any]]:
    """A line per decoder with a draft. codes: of its forward, root included; draft_ar_steps: a
    step's drafting in this run, NaN where it was not timed, and then the projection leaves it out
    (`at_most`); break_even_ar_steps: see above."""
    timed = run.roofline
    for section in run.sections:
        step = timed.get(section.baseline.name if section.baseline else "", {}).get("step_ms")
        for entry in section.decoders:
            nodes = 0 if entry.failed else tree_nodes(entry)
            if entry.role is not Role.DECODER or not nodes:
                continue
            images = entry.line.timed  # all drafter calls of a step together
            draft_ms = 1e3 * (images.seconds_draft.where(images.seconds_draft > 0) / images.nfe)
            draft = float(draft_ms.median()) / (step or math.nan)
            mal, cost = entry.interval("mal"), cost_at(costs, nodes + 1)
            whole = cost + np.nan_to_num(draft)
            speedup = Interval(*(float(end / whole) for end in vars(mal).values()))
            yield {
                "section": section.title,
                "decoder": entry.name,
                "verdict": entry.word.partition(" (")[0],
                "codes": nodes + 1,
                **cells({"mal": mal}),
                "forward_ar_steps": cost,
                "draft_ar_steps": draft,
                "at_most": math.isnan(draft),
                **cells({"speedup": speedup}),
                "break_even_ar_steps": mal.value - float(np.nan_to_num(draft)),
            }


def tree_nodes(entry: Entry) -> int:
    """Drafted codes of a step's forward; 0 of a decoder that drafts nothing."""
    nodes = entry.line.images["tree_nodes"].max()
    return 0 if nodes != nodes else int(nodes)
