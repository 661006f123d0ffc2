"""What a run is made of: the model that all share, the contenders, which are the decoders under
study, and the study itself; and how they are built.

Folders stay for days while drafters are edited and trained again. A row therefore names the code
and weights that decoded it by a digest (`digest_of`), and a resumed run keeps those that are equal.
A plug-in that changes the model's weights or torch's defaults would change the rows of the other
decoders. So after each call of a decoder with a plug-in they are compared with what they were.
"""

from __future__ import annotations

import importlib.util
import json
import logging
from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cache, cached_property, partial
from pathlib import Path
from typing import Any

import pandas as pd
import torch
from torch import nn

import decoders
from bench.config.schema import DecoderVariant, StudyConfig, digest, variants
from bench.errors import BenchError, Failure, attempt, describe_error, escape_hidden
from bench.gate.target import examine
from bench.measure.device import Provenance
from bench.measure.meter import Meter
from bench.prompts import Prompt, load_prompts
from bench.store.columns import SCHEMA_VERSION, Row
from bench.store.run_folder import RunFolder
from decoders.api import Decoder, DecoderError, ImageModel
from decoders.compose import BrokenModule, DecoderSpec, build_decoder, is_synthetic
from decoders.execution import with_execution
from decoders.models.loading.weights import sha256_of

log = logging.getLogger(__name__)
DIGESTED = (".py", ".cpp", ".h", ".json")  # files of decoders/
WEIGHT_ENDINGS = (".safetensors", ".bin", ".pt", ".pth", ".ckpt")
DTYPE, DEVICE = "torch's default dtype", "torch's default device"


@dataclass(eq=False)
class Contender:
    """decoder: built, or why it cannot be run; digest: of the code and weights that decode;
    constants: what all of its rows share, labels of its parts among it; jobs_left: how many are to
    come, and warm: which were warmed up, by how many images are decoded at once; fits: how many
    quality images the memory holds at once, None where all that were asked for."""

    variant: DecoderVariant
    decoder: Decoder | Failure
    digest: str = ""
    constants: Row = field(default_factory=dict)
    jobs_left: Counter[int] = field(default_factory=Counter)
    warm: set[int] = field(default_factory=set)
    fits: int | None = None

    @property
    def name(self) -> str:
        return self.variant.name

    @cached_property
    def synthetic(self) -> bool:
        return is_synthetic(self.variant.entry.spec)

    @cached_property
    def plug_ins(self) -> list[str]:
        return plug_ins(self.variant.entry.spec)


def plug_ins(spec: DecoderSpec) -> list[str]:
    """Lists the parts that are not the project's own."""
    return [part.target for part in spec.parts if not part.target.startswith("decoders.")]


class SharedStateError(BenchError):
    """A decoder has changed what all decoders of a run share."""


class SharedState:
    """before: torch's defaults, and by name the sum of the bytes of each weight and buffer of the
    model's modules; nothing where no decoder has a plug-in."""

    def __init__(self, model: ImageModel, guarded: bool) -> None:
        self.model = model
        self.before = self.read() if guarded else {}

    def require_unchanged(self, contender: Contender) -> None:
        """Raises SharedStateError where a plug-in of the contender has changed anything."""
        after = self.read() if contender.plug_ins else self.before
        if changed := [key for key, value in self.before.items() if after.get(key) != value]:
            torch.set_default_dtype(self.before[DTYPE])
            device = self.before[DEVICE]
            torch.set_default_device(None if device.type == "cpu" else device)
            raise SharedStateError(
                f"{contender.name} ({', '.join(contender.plug_ins)}) has changed "
                f"{', '.join(changed[:3])}, which all decoders share. The run ends here, and no "
                "row that came after it is kept; leave that decoder out, or have it put back what "
                "it changes and work on a copy of the model"
            )

    @torch.inference_mode()
    def read(self) -> dict[str, Any]:
        state = {DTYPE: torch.get_default_dtype(), DEVICE: torch.get_default_device()}
        for part in ("target", "text", "tokenizer"):
            owner = getattr(self.model, part)
            members = {"": owner} if isinstance(owner, nn.Module) else vars(owner)
            modules = {name: one for name, one in members.items() if isinstance(one, nn.Module)}
            for member, module in modules.items():
                for name, tensor in module.state_dict().items():
                    data = tensor.contiguous().reshape(-1).view(torch.uint8)
                    state[f"{part}.{member}.{name}".replace("..", ".")] = int(data.sum())
        return state


@dataclass(eq=False)
class Study:
    """config; the model; contenders in the study's order, and what they share; the folder; the
    meter of their calls; rows: those that were merged, none before the run."""

    config: StudyConfig
    model: ImageModel
    contenders: list[Contender]
    shared: SharedState
    folder: RunFolder
    meter: Meter
    rows: pd.DataFrame = field(default_factory=pd.DataFrame)

    @cached_property
    def prompts(self) -> list[Prompt]:
        """Those that the largest of its protocols decodes. Raises ConfigError, PromptError."""
        config = self.config
        return load_prompts(config.prompts, config.prompts_needed, config.replicate)

    @property
    def variants(self) -> list[DecoderVariant]:
        return [contender.variant for contender in self.contenders]

    @property
    def path(self) -> Path:
        return self.folder.path


def built_study(
    config: StudyConfig, model: ImageModel, folder: RunFolder, origin: Provenance
) -> Study:
    """A study with its decoders built on the model. Raises DecoderError for a setting that cannot
    be, SharedStateError."""
    every = variants(config, model.sampling)
    shared = SharedState(model, any(plug_ins(variant.entry.spec) for variant in every))
    # Before any is built: loading a drafter takes its name away from the model.
    weights, drafters = dict(model.weights_sha256), dict(model.drafters)
    contenders = list[Contender]()
    for variant in every:
        contenders.append(one := Contender(variant, build(model, variant)))
        if isinstance(one.decoder, Failure):
            log.warning("%s cannot be built: %s", one.name, one.decoder.error)
        shared.require_unchanged(one)
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
    meter = Meter(model.device, config.latency.busy, captured=model.mode == "graph")
    return Study(config, model, contenders, shared, folder, meter)


def examined_study(
    config: StudyConfig,
    model: ImageModel,
    folder: RunFolder,
    origin: Provenance,
    prompts: Sequence[Prompt],
) -> Study:
    """As `built_study`, once the prompts and the target are found to be fit. Raises as it does,
    DecoderError for a prompt that the model cannot read, TargetError as `examine_target`."""
    study = built_study(config, model, folder, origin)
    study.prompts = [*prompts]
    require_readable(model, prompts)
    examine_target(study)
    return study


def examine_target(study: Study) -> None:
    """Raises TargetError where the model's target is not as its contract says."""
    cfg = max(variant.sampling.cfg for variant in study.variants)
    proposers = [
        one.decoder.proposer for one in study.contenders if not isinstance(one.decoder, Failure)
    ]
    width = 1 + max((part.nodes for part in proposers if part is not None), default=0)
    examine(study.model, lambda: [prompt.text for prompt in study.prompts[:2]], cfg, width)


def labels_of(contender: Contender) -> dict[str, str]:
    """Loop, drafter, tree and acceptance, by the built parts where they tell."""
    labels, built = contender.variant.entry.spec.labels, contender.decoder
    texts = attempt(partial(labels, None if isinstance(built, Failure) else built))
    texts = labels(None) if isinstance(texts, Failure) else texts
    return {name: escape_hidden(text) for name, text in texts.items()}


def load_model(
    config: StudyConfig,
    device: torch.device,
    timed: Collection[int] = (),
    untimed: Collection[int] = (),
) -> ImageModel:
    """Loads the image model of a study on its device. timed: sizes of batches that are timed, at
    which steps are compiled or captured; untimed: of others, at which CUDA graphs are captured
    without a compiler."""
    loaded: ImageModel = config.model.load(device=str(device), dtype=config.backend.dtype)
    config.model.require(isinstance(loaded, ImageModel), loaded, "an ImageModel")
    named = replace(loaded, name=config.model.name)
    return with_execution(named, config.backend.execution, timed, untimed)


def require_readable(model: ImageModel, prompts: Sequence[Prompt]) -> None:
    """Raises DecoderError for a prompt that the model cannot read."""
    for prompt in prompts:
        try:
            model.text.check([prompt.text])
        except DecoderError as error:
            raise DecoderError(f"the model cannot read prompt {prompt.id}: {error}") from error


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
