"""Loading the model of a study, and the state of the process in which it is timed."""

from __future__ import annotations

import dataclasses
import gc
import sys
from collections.abc import Container, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

import torch

from bench.config.plugins import call, require_returned
from bench.config.schema import BackendConfig, StudyConfig
from bench.errors import ConfigError
from bench.measure.device import Provenance, prepare, provenance
from bench.prompts import Prompt, PromptSet
from bench.prompts.readable import check_prompts
from decoders.api import DecoderError, ImageModel
from decoders.executed import executed
from decoders.kernels.selected import Kernels


@dataclass(frozen=True)
class Session:
    """A study's model on its device, with prompts that it can read, and what it runs on."""

    model: ImageModel
    prompts: Sequence[Prompt]
    made: Provenance


def opened(config: StudyConfig, count: int, timed: Container[int] = (1,)) -> Session:
    """For a command that measures something else than rows, on so many prompts, in batches of the
    sizes `timed`. Raises as a run does before it starts."""
    device = prepare(config.backend)
    prompts = call(config.prompts, count=count)
    model = load_model(config, device, prompts, timed)
    check_prompts(model, prompts)
    return Session(model, prompts, provenance(device))


def load_model(
    config: StudyConfig,
    device: torch.device,
    prompts: Sequence[Prompt] = (),
    timed: Container[int] = (),
) -> ImageModel:
    """The image model of a study on its device. Features that the prompts bring along (a feature
    cache) take the place of the model's text encoder; DecoderError where they do not fit it.
    timed: sizes of batches that are timed; the CPU compiles what its kernel has no call for."""
    loaded: ImageModel = call(config.model, device=str(device), dtype=config.backend.dtype)
    require_returned(config.model, loaded, isinstance(loaded, ImageModel), "an ImageModel")
    mode = "cpu" if config.backend.layers == "native" else config.backend.execution
    sizes = {"auto": timed, "on": range(1, sys.maxsize), "off": ()}[config.backend.compile]
    model = executed(dataclasses.replace(loaded, name=config.model.name), mode, sizes)
    set_attention(model, config.backend)
    cache = prompts.text if isinstance(prompts, PromptSet) else None
    if cache is None:
        return model
    model = dataclasses.replace(model, text=cache.to(model.device))
    with torch.inference_mode():  # one prefill: whether the features fit is the target's to say
        text = model.text.encode([prompts[0].text])
        if cache.length != model.target.prefix:
            raise DecoderError(
                f"{cache.path} holds features of {cache.length} positions, the model's prefix has "
                f"{model.target.prefix}; make the file for this model (`python -m bench features`)"
            )
        model.target.prefill(text, 1, model.target.new_cache(1, cache.length))
    return model


def set_attention(model: ImageModel, backend: BackendConfig) -> None:
    """Gives the target the attention of the backend. Raises ConfigError where it has no choice."""
    plain = model.device.type == "cpu" or backend.execution == "compile"
    if backend.attention == "auto" and (plain or not hasattr(model.target, "kernels")):
        return
    if not hasattr(model.target, "kernels"):
        raise ConfigError(
            f"backend.attention={backend.attention}: the target {type(model.target).__name__} has "
            "an attention of its own; leave backend.attention=auto"
        )
    if backend.execution == "compile":
        raise ConfigError(
            "backend.attention is the compiler's choice under execution=compile; leave it at auto"
        )
    model.target.kernels = Kernels(
        backend.attention, "eager" if backend.execution == "eager" else None
    )


def with_text_hashes(model: ImageModel) -> ImageModel:
    """The model with the SHA-256 of its text encoder's files among its weights', for an encoder
    that is loaded apart from the model."""
    hashes: dict[str, str] = getattr(model.text, "sha256", dict)()
    return dataclasses.replace(model, weights_sha256={**model.weights_sha256, **hashes})


def collect_all() -> None:
    """Frees what refers to itself, as what a compiler keeps of a recorded step's state, though it
    was frozen."""
    gc.unfreeze()
    gc.collect()
    gc.freeze()


@contextmanager
def frozen_heap() -> Iterator[None]:
    """Moves all objects out of the garbage collector's sight: collecting before each timed region
    then costs no more than what the last image left."""
    gc.collect()
    gc.freeze()
    try:
        yield
    finally:
        gc.unfreeze()
