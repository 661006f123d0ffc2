"""The model of a study on its device, with the prompts that it reads, and the process that runs it.

The attention of a target is chosen by measurement, so a second process may choose another one, and
codes in half precision depend on it. study.json keeps what the first process of a run chose, and
all others go by it.
"""

from __future__ import annotations

import dataclasses
import gc
import sys
from collections.abc import Container, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor

from bench.config.plugins import call, require_returned
from bench.config.schema import BackendConfig, StudyConfig
from bench.data.errors import ConfigError, FolderError
from bench.prompts import Prompt, PromptSet
from bench.records.folder import RunFolder
from bench.records.study import advice, read_identity
from decoders.api import DecoderError, ImageModel
from decoders.executed import executed
from decoders.kernels.selected import Kernels, purpose

ATTENTION = "attention"  # of study.json: what was chosen for each shape
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


def set_attention(model: ImageModel, backend: BackendConfig) -> None:
    """Gives the target the attention of the backend. Raises ConfigError where it has no choice."""
    compiled = backend.execution == "compile"
    if backend.attention == "auto" and (compiled or model.device.type == "cpu"):
        return
    if compiled:
        raise ConfigError(
            "backend.attention is the compiler's choice under execution=compile; leave it at auto"
        )
    mode = "eager" if backend.execution == "eager" else None
    model.target.kernels = Kernels(backend.attention, mode)


def go_by(folder: RunFolder, model: ImageModel) -> None:
    """The target takes the attention that the run's folder names, and new choices are kept there.
    Raises FolderError where one of them cannot run here."""
    kernels = model.target.kernels
    if kernels is None:
        return
    try:
        kernels.recall(read_identity(folder.path).get(ATTENTION, []), model.device)
    except DecoderError as error:
        raise FolderError(
            f"{folder.path} was begun with an attention that cannot be had here: {error}. "
            f"{advice(folder.path)}"
        ) from error
    kernels.agree = partial(agreed, folder)


def agreed(folder: RunFolder, record: dict[str, Any]) -> dict[str, Any]:
    """Keeps the record of a choice where the run has none for its shape; returns the run's."""
    key = purpose(record["shape"])

    def added(known: list[dict[str, Any]] | None) -> list[dict[str, Any]]:
        known = known or []
        return known if any(purpose(r["shape"]) == key for r in known) else [*known, record]

    found = folder.note(ATTENTION, added)
    return next(r for r in found if purpose(r["shape"]) == key)


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
