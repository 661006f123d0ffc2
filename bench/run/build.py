"""Builds what a study runs: the model that all share, and every decoder.

Folders stay for days while drafters are edited and trained again. A row therefore names the code
and weights that decoded it by a digest (`digest_of`), and a resumed run keeps those that are equal.
"""

from __future__ import annotations

import dataclasses
import importlib.util
import json
import logging
from collections.abc import Collection, Mapping
from functools import cache, partial
from pathlib import Path
from typing import Any

import torch

import decoders
from bench.config.schema import DecoderVariant, StudyConfig, digest, variants
from bench.errors import Failure, attempt, describe_error, escape_hidden
from bench.files import WEIGHT_ENDINGS
from bench.measure.device import Provenance
from bench.run.contender import Contender, plug_ins
from bench.run.shared_state import SharedState
from bench.store.columns import SCHEMA_VERSION
from decoders.api import Decoder, DecoderError, ImageModel
from decoders.compose import BrokenModule, build_decoder
from decoders.execution import with_execution
from decoders.models.loading.weights import sha256_of

log = logging.getLogger(__name__)
DIGESTED = (".py", ".cpp", ".h", ".json")  # files of decoders/


def contenders_of(
    config: StudyConfig, model: ImageModel, origin: Provenance
) -> tuple[list[Contender], SharedState]:
    """Builds every decoder of a study; and what none of them may change. Raises DecoderError for a
    setting that cannot be, SharedStateError."""
    every = variants(config, model.sampling)
    shared = SharedState(model, any(plug_ins(variant.entry.spec) for variant in every))
    # Before any is built: loading a drafter takes its name away from the model.
    weights, drafters = dict(model.weights_sha256), dict(model.drafters)
    contenders = list[Contender]()
    for variant in every:
        contenders.append(one := Contender(variant, build(model, variant)))
        if isinstance(one.decoder, Failure):
            log.warning("%s cannot be built: %s", one.name, one.decoder.error)
        shared.require_unchanged(one.name, one.plug_ins)
    for one in contenders:
        one.digest = digest_of(one.variant, model, weights, drafters)
        one.constants = {
            "schema_version": SCHEMA_VERSION,
            "study": config.name,
            "config_hash": config.hash,
            "model": config.model.name,
            "backend": config.backend.name,
            "device": config.backend.device,
            "dtype": config.backend.dtype,
            "decoder": one.name,
            **vars(one.variant.sampling),
            **labels_of(one),
            "code": one.digest,
            **vars(origin),
            "versions": json.dumps(origin.versions, sort_keys=True),
        }
    return contenders, shared


def labels_of(contender: Contender) -> dict[str, str]:
    """Loop, drafter, tree and acceptance, by the built parts where they tell."""
    labels, built = contender.variant.entry.spec.labels, contender.decoder
    texts = attempt(partial(labels, None if isinstance(built, Failure) else built))
    texts = labels(None) if isinstance(texts, Failure) else texts
    return {name: escape_hidden(text) for name, text in texts.items()}


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
            files = [path for path in files if path.suffix in WEIGHT_ENDINGS and path.is_file()]
            named |= matching or {str(path): sha256_of(path) for path in files}
    return digest([project_digest(), hashes, named])[:12]


@cache
def project_digest() -> str:
    folder = Path(decoders.__file__).parent
    files = sorted(
        p for p in folder.rglob("*") if p.suffix in DIGESTED and "weights" not in p.parts
    )
    return digest([sha256_of(path) for path in files])
