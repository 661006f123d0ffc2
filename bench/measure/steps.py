"""What a decoding step costs, and what its matrix products alone would cost.

Why: a speed-up is bounded by (codes a step) x (AR step) / (draft + verify + rest), so a missed
ratio is explained by these few numbers; and a baseline that is far above its own matrix products
would make every method look good. Everything is timed in turns, so that drift hits all alike.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from decoders.api import ImageModel, Sampling, TextFeatures
from decoders.distribution import code_logits, probabilities
from decoders.noise import sample

ROUNDS = 60
WARMUP = 8


@dataclass(frozen=True)
class StepCost:
    """Median milliseconds of one step at batch 1, and of its matrix products alone."""

    name: str
    nodes: int  # codes a row in the forward
    step_ms: float
    products_ms: float

    @property
    def factor(self) -> float:
        """How far the step is above its matrix products."""
        return self.step_ms / self.products_ms


def products(module: nn.Module, rows: int) -> Callable[[], None]:
    """Runs every linear layer of `module` once on `rows` rows."""
    layers = [m for m in module.modules() if isinstance(m, nn.Linear)]
    inputs = {
        m.in_features: torch.randn(
            rows, 1, m.in_features, dtype=m.weight.dtype, device=m.weight.device
        )
        for m in layers
    }

    def run() -> None:
        for layer in layers:
            F.linear(inputs[layer.in_features], layer.weight, layer.bias)

    return run


def step_costs(
    model: ImageModel,
    sampling: Sampling,
    text: TextFeatures,
    nodes: tuple[int, ...] = (1, 5, 9, 13, 26),
) -> list[StepCost]:
    """Costs of an AR step (1 node), of verifying trees of several sizes, and of a drafter call.

    Half-way through an image; text is one encoded prompt. A step is forward, guidance, distribution
    and sample; the caption network is not part of it.
    """
    target: Any = model.target
    copies = sampling.guidance_rows
    half = target.length // 2
    cache = target.new_cache(copies, target.prefix + target.length + max(nodes))
    hidden = target.prefill(text, copies, cache)
    runs: dict[str, tuple[int, Callable[[], Any], Callable[[], None]]] = {}
    body = nn.ModuleList([*target.layers, target.output])
    for count in nodes:
        name = "AR step" if count == 1 else f"verify {count - 1} nodes + root"
        runs[name] = (
            count,
            _forward(model, sampling, text, cache, half, count),
            products(body, copies * count),
        )
    for name, net in model.drafters.items():
        runs[f"draft call ({name})"] = (
            1,
            _draft(model, sampling, text, hidden, name),
            products(nn.ModuleList([net, target.output]), copies),
        )
    return [
        StepCost(name, count, full, alone)
        for (name, (count, _, _)), (full, alone) in zip(
            runs.items(), _interleaved([r[1:] for r in runs.values()]), strict=True
        )
    ]


def _forward(
    model: ImageModel, sampling: Sampling, text: TextFeatures, cache: Any, place: int, count: int
) -> Callable[[], Tensor]:
    target: Any = model.target
    copies = sampling.guidance_rows
    codes = torch.zeros(copies, count, dtype=torch.long, device=model.device)
    grid = place + torch.arange(count, device=model.device).expand(copies, -1)
    slots = target.prefix + grid
    seen = F.pad(text.row_mask(copies), (0, place + count), value=True)  # [G, S' so far]
    mask = F.pad(seen, (0, cache.capacity - seen.shape[1]))[:, None]  # [G, 1, S]
    mask = mask.expand(-1, count, -1)  # [G, T, S]
    u = torch.full((1, count), 0.5, device=model.device)

    def run() -> Tensor:
        hidden = target.forward_codes(codes, grid, slots, mask, cache)
        logits = code_logits(target, hidden, sampling.cfg, grid[:1] + 1)
        p = probabilities(logits, sampling)
        return p.argmax(-1) if sampling.greedy else sample(p, u)

    return run


def _draft(
    model: ImageModel, sampling: Sampling, text: TextFeatures, hidden: Tensor, name: str
) -> Callable[[], Tensor]:
    from decoders.drafters.eagle import Eagle

    session = Eagle(model, name).begin(text, hidden, sampling, 2, 1)
    one = torch.ones(1, dtype=torch.long, device=model.device)
    session.advance(hidden[:, -1:], one[:, None] - 1, one, one + model.target.length // 2)
    codes, parents = torch.zeros(1, 1, dtype=torch.long), torch.zeros(1, 1, dtype=torch.long)
    codes, parents = codes.to(model.device), parents.to(model.device)
    u = torch.full((1, 1), 0.5, device=model.device)

    def run() -> Tensor:
        q = probabilities(session.expand(codes, one, parents, 1), sampling)
        return q.argmax(-1) if sampling.greedy else sample(q, u)

    return run


def _interleaved(
    pairs: list[tuple[Callable[[], Any], Callable[[], None]]],
) -> list[tuple[float, float]]:
    """Median milliseconds of both members of every pair, measured in turns."""
    taken: list[tuple[list[float], list[float]]] = [([], []) for _ in pairs]
    with torch.inference_mode():
        for turn in range(ROUNDS + WARMUP):
            for pair, times in zip(pairs, taken, strict=True):
                for run, seconds in zip(pair, times, strict=True):
                    begin = time.perf_counter()
                    run()
                    if turn >= WARMUP:
                        seconds.append(time.perf_counter() - begin)
    return [(1e3 * statistics.median(a), 1e3 * statistics.median(b)) for a, b in taken]
