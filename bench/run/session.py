"""What all decoders of a run share: the model on its device, its prompts read, and what it is.

A plug-in that changes the model would change the rows of the other decoders: after each call of a
decoder with a plug-in its weights, and torch's defaults, are compared with what they were.

Folders stay for days while drafters are edited and trained again. A record therefore names the code
and weights that decoded it by a digest (`digest_of`), and a resumed run keeps those that are equal.
"""

from __future__ import annotations

import dataclasses
import gc
import importlib.util
import sys
from collections.abc import Container, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from typing import Any

import torch
from torch import nn

import decoders
from bench.config.schema import DecoderVariant, StudyConfig, digest
from bench.data.errors import BenchError
from bench.data.files import WEIGHTS
from bench.prompts import Prompt
from decoders.api import DecoderError, ImageModel
from decoders.compose import DecoderSpec
from decoders.execution import with_execution
from decoders.models.weights import sha256_of

CODE = (".py", ".cpp", ".h", ".json")  # files of decoders/ that a digest is of
DTYPE, DEVICE = "torch's default dtype", "torch's default device"
NAMED = 3  # names in a message


def load_model(config: StudyConfig, device: torch.device, timed: Container[int] = ()) -> ImageModel:
    """The image model of a study on its device. timed: sizes of batches that are timed; the CPU
    compiles what its kernel has no call for."""
    loaded: ImageModel = config.model.load(device=str(device), dtype=config.backend.dtype)
    config.model.require(isinstance(loaded, ImageModel), loaded, "an ImageModel")
    mode = "cpu" if config.backend.layers == "native" else config.backend.execution
    sizes = {"auto": timed, "on": range(1, sys.maxsize), "off": ()}[config.backend.compile]
    return with_execution(dataclasses.replace(loaded, name=config.model.name), mode, sizes)


def check_prompts(model: ImageModel, prompts: Sequence[Prompt]) -> None:
    """Reads every prompt once, so that one the model cannot read stops the run before it starts.
    The DecoderError names the prompt."""
    for prompt in prompts:
        try:
            model.text.check([prompt.text])
        except DecoderError as error:
            raise DecoderError(f"the model cannot read prompt {prompt.id}: {error}") from error


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


def plug_ins(spec: DecoderSpec) -> list[str]:
    """The parts that are not the project's own."""
    return [part.target for part in spec.parts if not part.target.startswith("decoders.")]


# ---- whether a plug-in has changed what all share -----------------------------------------------


class SharedStateError(BenchError):
    """A decoder has changed what all decoders of a run share."""


class Guard:
    """The state of a model and of torch before any decoder of a study with plug-ins has run."""

    def __init__(self, model: ImageModel, variants: Sequence[DecoderVariant]) -> None:
        guarded = any(plug_ins(variant.entry.spec) for variant in variants)
        self.model, self.before = model, shared_state(model) if guarded else {}

    def check(self, variant: DecoderVariant) -> None:
        """Raises SharedStateError where a plug-in of the decoder has changed any of it."""
        names = plug_ins(variant.entry.spec)
        after = shared_state(self.model) if names else self.before
        if changed := [name for name, value in self.before.items() if after.get(name) != value]:
            torch.set_default_dtype(self.before[DTYPE])
            device = self.before[DEVICE]
            torch.set_default_device(None if device.type == "cpu" else device)
            raise SharedStateError(
                f"{variant.name} ({', '.join(names)}) has changed {', '.join(changed[:NAMED])}, "
                "which all decoders share. The run ends here, and no row that came after it is "
                "kept; leave that decoder out, or have it put back what it changes and work on a "
                "copy of the model"
            )


@torch.inference_mode()
def shared_state(model: ImageModel) -> dict[str, Any]:
    """torch's defaults, and the sum of the bytes of each weight and buffer of the model's modules,
    by name."""
    state: dict[str, Any] = {DTYPE: torch.get_default_dtype(), DEVICE: torch.get_default_device()}
    for part in ("target", "text", "tokenizer"):
        owner = getattr(model, part)
        members = {"": owner} if isinstance(owner, nn.Module) else vars(owner)
        modules = {name: one for name, one in members.items() if isinstance(one, nn.Module)}
        for member, module in modules.items():
            for name, tensor in module.state_dict().items():
                data = tensor.contiguous().reshape(-1).view(torch.uint8)
                state[f"{part}.{member}.{name}".replace("..", ".")] = int(data.sum())
    return state


# ---- what decodes the images of a decoder -------------------------------------------------------


def digest_of(
    variant: DecoderVariant,
    model: ImageModel,
    weights: Mapping[str, str],
    places: Mapping[str, Any],
) -> str:
    """The 12 hex digits that a resumed run compares: a digest of decoders/, of the files of its
    plug-ins, of the model's weights, and of those that its settings name.

    weights, places: `weights_sha256` and `drafters` of the model before any decoder was built.
    """
    hashes = []
    for target in plug_ins(variant.entry.spec):
        module = importlib.util.find_spec(target.replace(":", ".").rpartition(".")[0])
        hashes.append(sha256_of(Path(module.origin)) if module and module.origin else "")
    named = dict(weights)
    for word in (w for part in variant.entry.spec.parts for w in part.kwargs.values()):
        place = places.get(word, word) if isinstance(word, str) else None
        if isinstance(place, str):
            loaded = model.weights_sha256.items()
            mine = {k: v for k, v in loaded if place in (k, k.rpartition("/")[0])}
            named |= mine or {str(path): sha256_of(path) for path in _weight_files(Path(place))}
    return digest([project_digest(), hashes, named])[:12]


@cache
def project_digest() -> str:
    """The digest of the code in decoders/."""
    folder = Path(decoders.__file__).parent
    files = sorted(p for p in folder.rglob("*") if p.suffix in CODE and "weights" not in p.parts)
    return digest([sha256_of(path) for path in files])


def _weight_files(place: Path) -> list[Path]:
    """A file of weights, or those in a folder; none where there is no such place."""
    inside = sorted(place.iterdir()) if place.is_dir() else [place]
    return [path for path in inside if path.suffix in WEIGHTS and path.is_file()]
