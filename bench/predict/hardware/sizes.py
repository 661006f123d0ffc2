"""The networks of a model as a forward sees them, from its shape alone: nothing is loaded."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from bench.config.schema import LoaderConfig
from bench.errors import ConfigError, unknown
from bench.measure.roofline import Net, net_of
from bench.plan.checkpoints import MODELS
from bench.plan.command import shape_of_source, source_of
from bench.plan.costs import BYTES, Shape

SIZE = BYTES["bfloat16"]  # of a number, on every machine that is projected to


@dataclass(frozen=True)
class Sizes:
    """A model's target, and an EAGLE drafter of its width (METHODS 3): one layer on 2D inputs and
    the target's head."""

    name: str
    target: Net
    drafter: Net


def sizes_of(model: LoaderConfig) -> Sizes:
    """Raises ConfigError where the shape of a model is not known without loading it."""
    return of_shape(published_name(model), shape_of_model(model))


def of_shape(name: str, shape: Shape) -> Sizes:
    """The networks of a shape, in bfloat16."""
    rows = shape.tokens or shape.vocab
    drafter = Net(
        body=shape.drafter - rows * shape.width,  # the embedding is looked up, not read
        head=shape.head,
        layers=1,
        width=shape.width,
        kv_width=shape.kv_width,
        slots=max(shape.prefix - 1, 0),
        length=shape.length,
        size=SIZE,
    )
    return Sizes(name, net_of(shape, SIZE), drafter)


def shape_of_model(model: LoaderConfig) -> Shape:
    """From a preset of random weights, a folder on this disk or a public checkpoint's figures."""
    preset = model.kwargs.get("preset")
    if isinstance(preset, str):
        from decoders.models.unweighted import config_of

        cfg: Any = config_of(preset, model.kwargs.get("grid"))
        return Shape.of(cfg)
    source, usual, _ = source_of(model)
    found = shape_of_source(model, source, usual.shape if usual else None)
    if found is None:
        known = unknown("shape of the model", model.name, MODELS)
        raise ConfigError(f"{known}; or a model with a `preset`, such as llamagen_xl_256_random")
    return found


def published_name(model: LoaderConfig) -> str:
    """What names.yaml calls the model: a preset of random weights is the released model's size."""
    preset = model.kwargs.get("preset")
    return preset if isinstance(preset, str) else model.name
