"""The drafter of a composition on the gate's small models: rebuilt without its checkpoint, and
watched for logits that make no distribution.

A checkpoint fits the model it was trained for and no other. What the gate enumerates is whether the
drafter's code drafts as it declares, which does not depend on its weights: so its class is built
with random ones. What its real weights do is looked at on the real model (`bench.judge.gate.real`).
"""

from __future__ import annotations

import inspect
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from bench.judge.gate.report import Finding
from decoders.api import ImageModel, Sampling, TextFeatures
from decoders.compose import PartSpec, resolve
from decoders.distribution import probabilities
from decoders.noise import Noise

SHAKE = 0.3  # random share of a rebuilt drafter's weights, in units of their own size
PLAIN = (bool, int, float, str)


def options_of(part: PartSpec) -> Mapping[str, Any]:
    """Keywords of the part's class with their values, defaults included."""
    parameters = inspect.signature(resolve(part.target)).parameters.values()
    known = {p.name: p.default for p in parameters if p.default is not inspect.Parameter.empty}
    return known | part.kwargs


def checkpoints(part: PartSpec | None) -> dict[str, str]:
    """The options that name weights from outside the model: text, where the class does without by
    default, or the path of something that exists."""
    if part is None:
        return {}
    parameters = inspect.signature(resolve(part.target)).parameters
    bare = [name for name, option in parameters.items() if option.default is None]
    named = {name: value for name, value in part.kwargs.items() if isinstance(value, str)}
    return {n: value for n, value in named.items() if n in bare or Path(value).exists()}


def small_drafter(part: PartSpec | None, layers: int) -> PartSpec | None:
    """The drafter for a small target of `layers` layers: without its checkpoint, with the sizes
    that the checkpoint's config.json gives for the class's own options; one that runs the target's
    first layers leaves it the last."""
    if part is None:
        return None
    outside = checkpoints(part)
    kwargs = {name: value for name, value in part.kwargs.items() if name not in outside}
    for folder in outside.values():
        kwargs = _sizes(part, Path(folder) / "config.json") | kwargs
    if isinstance(first := options_of(part).get("layers"), int):
        kwargs["layers"] = min(first, max(1, layers - 1))
    return PartSpec(part.target, kwargs)


def _sizes(part: PartSpec, path: Path) -> dict[str, Any]:
    """What a checkpoint's config.json says of options of the class."""
    try:
        said = json.loads(path.read_text())
    except (OSError, ValueError):  # the drafter itself says what is wrong with its checkpoint
        return {}
    if not isinstance(said, dict):
        return {}
    options, outside = options_of(part), checkpoints(part)
    return {
        name: value
        for name, value in said.items()
        if name in options and name not in outside and isinstance(value, PLAIN)
    }


def shake(drafter: object, model: ImageModel) -> None:
    """Random weights for the modules of a drafter that was built without its checkpoint. Those that
    it shares with the target stay."""
    target: Any = model.target
    shared = {p.data_ptr() for p in target.parameters()} if isinstance(target, nn.Module) else set()
    given = list(model.drafters.values())
    generator = torch.Generator().manual_seed(0)
    inside = [drafter] if isinstance(drafter, nn.Module) else vars(drafter).values()
    for module in inside:
        if not isinstance(module, nn.Module) or any(module is net for net in given):
            continue  # a small model's own drafter is random already
        for weight in module.parameters():
            if weight.data_ptr() in shared or not weight.is_floating_point():
                continue
            size = float(weight.detach().float().pow(2).mean().sqrt())
            size = size or (weight.shape[-1] ** -0.5 if weight.ndim else 1.0)
            noise = torch.randn(weight.shape, generator=generator).to(weight)
            with torch.no_grad():
                weight.add_(SHAKE * size * noise)


class Watched:
    """A drafter whose sessions note whether their logits make a distribution."""

    def __init__(self, drafter: Any) -> None:
        self.drafter, self.bad = drafter, False

    def begin(
        self,
        text: TextFeatures,
        prefix_hidden: Tensor,
        sampling: Sampling,
        max_new: int,
        nodes: int,
    ) -> WatchedSession:
        made = self.drafter.begin(text, prefix_hidden, sampling, max_new, nodes)
        return WatchedSession(made, self, sampling)


class WatchedSession:
    """Hands everything on to a session. It says of no method what it computes, so that no execution
    drafts whole trees unseen."""

    def __init__(self, session: Any, watch: Watched, sampling: Sampling) -> None:
        self._session, self._watch, self._sampling = session, watch, sampling

    def __getattr__(self, name: str) -> Any:
        return getattr(self._session, name)

    def _seen(self, logits: Tensor) -> Tensor:
        self._watch.bad |= not bool(torch.isfinite(probabilities(logits, self._sampling)).all())
        return logits

    def advance(self, hidden: Tensor, codes: Tensor, count: Tensor, start: Tensor) -> Tensor:
        return self._seen(self._session.advance(hidden, codes, count, start))

    def expand(self, codes: Tensor, nodes: Tensor, parents: Tensor, depth: int) -> Tensor:
        return self._seen(self._session.expand(codes, nodes, parents, depth))


def finite_check(decoder: Any, text: TextFeatures, noise: Noise) -> Finding:
    """Are the drafter's logits numbers? A loop may well survive NaN (it accepts nothing then), but
    what such a drafter declares is no distribution. `decoder` is used up."""
    if getattr(decoder, "drafter", None) is None:
        return Finding("drafter", "")
    decoder.proposer.drafter = watch = Watched(decoder.drafter)
    decoder.generate(text, noise)
    fault = "the drafter's logits hold NaN or infinity: its q is no distribution" * watch.bad
    return Finding("drafter", fault, 0.0, {"logits are finite": not watch.bad})
