"""The decoders of a run: the model that they share, built and described, released when done.

A plug-in that changes the model would change the rows of the other decoders: after each call of a
decoder with a plug-in the model's weights, and torch's defaults, are compared with what they were.

Folders stay for days while drafters are edited and trained again. A row therefore names the code
and weights that decoded it by a digest (`digest_of`), and a resumed run keeps those that are equal.
"""

from __future__ import annotations

import dataclasses
import gc
import importlib.util
import logging
from collections.abc import Collection, Mapping, Sequence
from functools import cache, partial
from pathlib import Path
from typing import Any

import torch
from torch import nn

import decoders
from bench.config.schema import DecoderVariant, StudyConfig, digest
from bench.data.errors import BenchError, Failure, attempt, describe_error, escape_hidden
from bench.data.files import WEIGHTS
from bench.gate.compiled import compiled_fault
from decoders.api import Decoder, DecoderError, ImageModel
from decoders.compose import BrokenModule, DecoderSpec, build_decoder
from decoders.execution import with_execution
from decoders.execution.eager import release
from decoders.models.loading.weights import sha256_of

log = logging.getLogger(__name__)
CODE = (".py", ".cpp", ".h", ".json")  # files of decoders/ that a digest is of
DTYPE, DEVICE = "torch's default dtype", "torch's default device"


class SharedStateError(BenchError):
    """A decoder has changed what all decoders of a run share."""


def load_model(
    config: StudyConfig, device: torch.device, timed: Collection[int] = ()
) -> ImageModel:
    """Loads the image model of a study on its device. timed: sizes of batches that are timed, at
    which steps are compiled or captured."""
    loaded: ImageModel = config.model.load(device=str(device), dtype=config.backend.dtype)
    config.model.require(isinstance(loaded, ImageModel), loaded, "an ImageModel")
    named = dataclasses.replace(loaded, name=config.model.name)
    return with_execution(named, config.backend.execution, timed)


def build(model: ImageModel, variant: DecoderVariant) -> Decoder | Failure:
    """Builds a decoder, or returns what that raised, also where a plug-in cannot be imported.
    Another DecoderError (a setting that cannot be) passes, with the decoder's name."""
    try:
        return attempt(
            lambda: build_decoder(model, variant.entry.spec, variant.sampling), (DecoderError,)
        )
    except BrokenModule as error:
        return Failure(describe_error(error))
    except DecoderError as error:
        raise DecoderError(f"the decoder {variant.name} cannot be built: {error}") from error


class Decoders:
    """By a decoder's name: built: the decoder, or why it cannot be run; labels: loop, drafter, tree
    and acceptance as its rows have them; digests: what a resumed run compares."""

    def __init__(self, model: ImageModel, variants: Sequence[DecoderVariant]) -> None:
        self.model = model
        guarded = any(plug_ins(variant.entry.spec) for variant in variants)
        self.shared = shared_state(model) if guarded else {}
        # Before any is built: loading a drafter takes its name away from the model.
        weights, drafters = dict(model.weights_sha256), dict(model.drafters)
        self.built: dict[str, Decoder | Failure] = {}
        self.labels: dict[str, dict[str, str]] = {}
        for variant in variants:
            self.built[variant.name] = built = build(model, variant)
            self.require_unchanged(variant)
            labels = variant.entry.spec.labels
            decoder = None if isinstance(built, Failure) else built
            if isinstance(built, Failure):
                log.warning("%s cannot be built: %s", variant.name, built.error)
            texts = attempt(partial(labels, decoder))  # by its built parts, where they tell
            texts = labels(None) if isinstance(texts, Failure) else texts
            self.labels[variant.name] = {k: escape_hidden(text) for k, text in texts.items()}
        self.digests = {v.name: digest_of(v, model, weights, drafters) for v in variants}

    def require_unchanged(self, variant: DecoderVariant) -> None:
        """Raises SharedStateError where a plug-in of the decoder has changed what all share."""
        names = plug_ins(variant.entry.spec)
        after = shared_state(self.model) if names else self.shared
        if changed := [name for name, value in self.shared.items() if after.get(name) != value]:
            torch.set_default_dtype(self.shared[DTYPE])
            device = self.shared[DEVICE]
            torch.set_default_device(None if device.type == "cpu" else device)
            raise SharedStateError(
                f"{variant.name} ({', '.join(names)}) has changed {', '.join(changed[:3])}, "
                "which all decoders share. The run ends here, and no row that came after it is "
                "kept; leave that decoder out, or have it put back what it changes and work on a "
                "copy of the model"
            )

    def check_compiled_codes(self, variant: DecoderVariant, prompt: str, seed: int) -> None:
        """Fails a compiled decoder whose steps differ, beyond rounding, from those of the same
        pieces without a compiler: a table of it would compare what nobody wrote."""
        fast, how = self.built[variant.name], self.model.execution.uncompiled()
        if how is None or isinstance(fast, Failure) or fast.execution is None:
            return
        plain = build(dataclasses.replace(self.model, execution=how), variant)
        if isinstance(plain, Failure):
            return
        difference = attempt(lambda: compiled_fault(fast, plain, prompt, seed))
        if isinstance(difference, Failure):
            log.warning("%s is not compared with eager steps: %s", variant.name, difference.error)
        elif difference:
            self.built[variant.name] = Failure(
                "its compiled steps compute something else than the same pieces without a compiler "
                f"({difference}); set backend.execution=eager, and report it with this decoder"
            )

    def release(self, shapes: Collection[tuple[str, int]] = ()) -> bool:
        """Drops what executions keep for calls of other shapes (`Job.shape`) than these, and make
        again where needed: a captured step keeps its caches. Returns whether there was any."""
        dropped = [
            release(decoder, {size for owner, size in shapes if owner == name})
            for name, decoder in self.built.items()
        ]
        if any(dropped):
            gc.unfreeze()  # it may refer to itself, as a state that a compiler has seen
            freeze_heap()
        return any(dropped)


def freeze_heap() -> None:
    """Moves all objects out of the garbage collector's sight: collecting before each call then
    costs no more than what the last one left."""
    gc.collect()
    gc.freeze()


def plug_ins(spec: DecoderSpec) -> list[str]:
    """Lists the parts that are not the project's own."""
    return [part.target for part in spec.parts if not part.target.startswith("decoders.")]


@torch.inference_mode()
def shared_state(model: ImageModel) -> dict[str, Any]:
    """Returns torch's defaults, and by name the sum of the bytes of each weight and buffer of the
    model's modules."""
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


def digest_of(
    variant: DecoderVariant,
    model: ImageModel,
    weights: Mapping[str, str],
    drafters: Mapping[str, Any],
) -> str:
    """Returns the 12 hex digits that a resumed run compares: a digest of decoders/, of the files of
    plug-ins, of the model's weights, and of those that its settings name. weights, drafters:
    `weights_sha256` and `drafters` of the model before any decoder was built."""
    hashes = []
    for target in plug_ins(variant.entry.spec):
        module = importlib.util.find_spec(target.replace(":", ".").rpartition(".")[0])
        hashes.append(sha256_of(Path(module.origin)) if module and module.origin else "")
    named = dict(weights)
    for value in (v for part in variant.entry.spec.parts for v in part.kwargs.values()):
        name = drafters.get(value, value) if isinstance(value, str) else None
        if isinstance(name, str):
            loaded = model.weights_sha256.items()
            matching = {k: v for k, v in loaded if name in (k, k.rpartition("/")[0])}
            files = sorted(Path(name).iterdir()) if Path(name).is_dir() else [Path(name)]
            files = [path for path in files if path.suffix in WEIGHTS and path.is_file()]
            named |= matching or {str(path): sha256_of(path) for path in files}
    return digest([project_digest(), hashes, named])[:12]


@cache
def project_digest() -> str:
    folder = Path(decoders.__file__).parent
    files = sorted(p for p in folder.rglob("*") if p.suffix in CODE and "weights" not in p.parts)
    return digest([sha256_of(path) for path in files])
