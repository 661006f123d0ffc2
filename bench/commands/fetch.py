"""`python -m bench fetch study=...`: what a study needs from the hub, downloaded once.

Why: a hundred shards must not ask the hub for the same files, and must all have the same ones. So
one process fetches, and the others read the hub's cache alone (HF_HUB_OFFLINE=1). Fetching again
keeps the revision (a commit of the repository) that the cache has.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from bench.console import say
from bench.errors import plural
from bench.files import write_text

if TYPE_CHECKING:
    from bench.config.schema import LoaderConfig, StudyConfig
    from decoders.spec import PartSpec

BY_HAND = ("prompts.path", "metric.reference")  # settings that name no repository


def cmd_fetch(arguments: Sequence[str]) -> int:
    """Download what a study needs, once: models from the hub, and the metrics' networks.
    All names are looked up before the first download. A revision that the cache has is kept. With
    HF_HUB_OFFLINE=1 runs then read the cache alone.

    settings (and all others of a study: `python -m bench list settings`):
      study=NAME      which study (`list study`; default: main)
      decoders=[a,b]  decoders of the study, or any of conf/decoder

    example:
      python -m bench fetch study=lantern_table
    """
    from huggingface_hub import snapshot_download

    from bench.config.compose import compose_study
    from decoders.compose import check_keywords, resolve
    from decoders.models.loading.weights import HUB_ID_PATTERN, explain_hub, main_of
    from metrics.networks import download

    config = compose_study(arguments)
    for part in parts_of(config):  # what a run would refuse is not downloaded
        check_keywords(part.target, resolve(part.target), part.kwargs)
    sources = sources_of(config).items()
    missing = {source: of for source, of in sources if not Path(source).expanduser().exists()}
    hub = {k: of for k, of in missing.items() if of not in BY_HAND and HUB_ID_PATTERN.fullmatch(k)}
    repositories = [look_up(k, of, files_of(of, config.model)) for k, of in hub.items()]
    for one in repositories:
        say(f"{one.name}: {plural(len(one.names), 'file')}, {one.size / 1e9:.1f} GB")
    by_hand = {source: setting for source, setting in missing.items() if source not in hub}
    for source, setting in by_hand.items():
        say(f"missing: {source} ({setting}), to be put there by hand")
    for one in repositories:  # as the `main` of the hub's cache: that is what models read
        with explain_hub(one.name, one.names, one.setting):
            snapshot_download(one.name, revision=one.revision, allow_patterns=one.names)
        if not one.pinned:
            write_text(main_of(one.name), one.revision)
    for path in download(*metric_weights(config)):
        say(f"downloaded: {path}")
    if not missing:
        say(f"all that {config.name} needs is on this disk")
    return 1 if by_hand else 0


def parts_of(config: StudyConfig) -> list[LoaderConfig | PartSpec]:
    """Lists what a study imports by name."""
    loaders = filter(None, (config.model, config.prompts, config.metric))
    return [*loaders, *(part for entry in config.decoders for part in entry.spec.parts)]


def is_embedded(model: LoaderConfig) -> bool:
    """Tells whether a model's weights are those that the project carries."""
    checkpoint = model.kwargs.get("checkpoint")
    return checkpoint is None and model.target.startswith("decoders.tiny.")


def sources_of(config: StudyConfig) -> dict[str, str]:
    """Lists paths and hub ids that a study reads, each with a setting that names it: captions and
    real images, and the model's target, tokenizer, text encoder and drafters."""
    kwargs = config.model.kwargs
    metric = config.metric.kwargs if config.metric else {}
    named = {
        "prompts.path": config.prompts.kwargs.get("path"),
        "metric.reference": metric.get("reference") if "weights" in metric else None,
    }
    if not is_embedded(config.model) and kwargs.get("checkpoint"):
        named |= {f"model.{key}": kwargs.get(key) for key in ("checkpoint", "tokenizer", "text")}
        drafters = kwargs.get("drafters") or {}
        for entry in config.decoders:
            name = entry.spec.drafter and entry.spec.drafter.kwargs.get("checkpoint")
            named[f"{entry.name}: drafter.checkpoint"] = drafters.get(name, name)
    sources: dict[str, str] = {}
    for setting, source in named.items():
        if source:
            sources.setdefault(str(source), setting)
    return sources


def files_of(setting: str, model: LoaderConfig) -> Sequence[str]:
    """Lists the files that a model looks for in what a setting names, best first. Of a text encoder
    only LlamaGen reads weights: to the others text is tokens."""
    from decoders.models.chameleon import TOKENIZER_FILES
    from decoders.models.loading.weights import WEIGHT_FILES
    from decoders.models.pictures import CHAMELEON, LLAMAGEN
    from decoders.models.simplear import DECODER_FILE

    if setting == "model.tokenizer":
        return (*LLAMAGEN.files, *CHAMELEON.files, DECODER_FILE, *WEIGHT_FILES)
    tokens = setting == "model.text" and not model.target.startswith("decoders.models.llamagen.")
    return TOKENIZER_FILES if tokens else WEIGHT_FILES


def metric_weights(config: StudyConfig) -> tuple[list[str], Path | None]:
    """Returns the networks that a study's metric reads from their public files, and their folder;
    None: the usual one."""
    from metrics.networks import PUBLIC_FILES

    kwargs = config.metric.kwargs if config.metric else {}
    files = kwargs.get("weights") or {}
    keys = [
        key for key in files if key in PUBLIC_FILES and files[key] is None and kwargs.get(key, True)
    ]
    return keys, Path(files["folder"]) if files.get("folder") else None


@dataclass(frozen=True)
class Repository:
    """What is read of a repository of the hub. revision: a commit; names: of its files; size: their
    bytes; setting: that names it; pinned: whether it also names the revision."""

    name: str
    revision: str
    names: list[str]
    size: int
    setting: str
    pinned: bool


def look_up(source: str, setting: str, files: Sequence[str]) -> Repository:
    """Looks up what is read of a repository: of the revision that the source names, else of that
    which the hub's cache has as `main`, else of the newest one; files: one of them must be there.
    Raises DecoderError where it cannot be had or has nothing that is read."""
    from huggingface_hub import HfApi

    from decoders.models.loading.weights import (
        explain_hub,
        needed_files,
        none_of,
        repository_of,
        revision_of,
    )

    name, pinned = repository_of(source)
    with explain_hub(source, files, setting):
        revision = pinned or revision_of(name)
        info = HfApi().model_info(name, revision=revision, files_metadata=True)
    sizes = {file.rfilename: file.size or 0 for file in info.siblings or ()}
    names = needed_files(sizes, files)
    if not names:
        raise none_of(source, sizes, files, setting)
    size = sum(sizes[file] for file in names)
    return Repository(name, str(info.sha), names, size, setting, pinned is not None)
