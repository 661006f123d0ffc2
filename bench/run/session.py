"""The model of a study on its device, with the prompts that it reads, and the process that runs
it."""

from __future__ import annotations

import dataclasses
import gc
import sys
from collections.abc import Container, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

import torch
from torch import Tensor

from bench.config.plugins import call, require_returned
from bench.config.schema import StudyConfig
from bench.prompts import Prompt, PromptSet
from decoders.api import DecoderError, ImageModel
from decoders.executed import executed

ENCODE = 64  # prompts read at once when they are checked


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
    cache = prompts.text if isinstance(prompts, PromptSet) else None
    if cache is None:
        return model
    model = dataclasses.replace(model, text=cache.to(model.device))
    with torch.inference_mode():  # one prefill: whether the features fit is the target's to say
        text = model.text.encode([prompts[0].text])
        if cache.length != model.target.prefix:
            raise DecoderError(
                f"{cache.path} holds features of {cache.length} positions, the model's prefix has "
                f"{model.target.prefix}; make the file with this model's encoder"
            )
        model.target.prefill(text, 1, model.target.new_cache(1, cache.length))
    return model


def check_prompts(model: ImageModel, prompts: Sequence[Prompt]) -> None:
    """Reads every prompt once, so that one the model cannot read stops the run before it starts.
    The DecoderError names the prompt."""
    for start in range(0, len(prompts), ENCODE):
        part = prompts[start : start + ENCODE]
        try:
            model.text.check([prompt.text for prompt in part])
        except DecoderError as error:
            if len(part) == 1:
                raise DecoderError(f"the model cannot read prompt {part[0].id}: {error}") from error
            for prompt in part:
                check_prompts(model, [prompt])
            raise


@dataclass(frozen=True)
class CodesOnly:
    """A tokenizer that keeps its codebook, which relaxed rules need, and draws nothing."""

    codebook: Tensor
    missing = True  # `decoders.api.ImageModel.draws`

    def decode(self, codes: Tensor) -> Tensor:
        raise DecoderError(f"no pictures are made here, found {tuple(codes.shape)} codes to draw")


def codes_only(model: ImageModel) -> ImageModel:
    """The model without pictures, so that neither time nor memory of the tokenizer is spent."""
    if not model.draws:
        return model
    return dataclasses.replace(model, tokenizer=CodesOnly(model.codebook))


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
