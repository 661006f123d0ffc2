"""What a study reads that does not come with the project, and where it lies."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from bench.config.schema import LoaderConfig, StudyConfig

BY_HAND = ("prompts.path", "metric.reference")  # settings that name no repository


def embedded(model: LoaderConfig) -> bool:
    """Whether a model's weights are those that the project carries."""
    given = model.kwargs.get("checkpoint")
    return given is None and model.target.startswith("decoders.tiny.")


def sources_of(config: StudyConfig) -> dict[str, str]:
    """Paths and hub ids that a study reads, each with a setting that names it: captions and real
    images, and the model's target, tokenizer, text encoder and drafters."""
    kwargs = config.model.kwargs
    metric = config.metric.kwargs if config.metric else {}
    found = {
        "prompts.path": config.prompts.kwargs.get("path"),
        "metric.reference": metric.get("reference") if "weights" in metric else None,
    }
    if not embedded(config.model) and kwargs.get("checkpoint"):
        found |= {f"model.{key}": kwargs.get(key) for key in ("checkpoint", "tokenizer", "text")}
        named = kwargs.get("drafters") or {}
        for entry in config.decoders:
            name = entry.spec.drafter and entry.spec.drafter.kwargs.get("checkpoint")
            found[f"{entry.name}: drafter.checkpoint"] = named.get(name, name)
    sources: dict[str, str] = {}
    for setting, source in found.items():
        if source:
            sources.setdefault(str(source), setting)
    return sources


def files_of(setting: str, model: LoaderConfig) -> Sequence[str]:
    """The files that a model looks for in what a setting names, best first. Of a text encoder only
    LlamaGen reads weights: to the others text is tokens."""
    from decoders.models.chameleon import TOKENIZERS
    from decoders.models.repository import WEIGHTS
    from decoders.models.vq import cosmos_vq
    from decoders.models.vq.pictures import CHAMELEON, LLAMAGEN

    if setting == "model.tokenizer":
        return (*LLAMAGEN.files, *CHAMELEON.files, cosmos_vq.FILE, *WEIGHTS)
    tokens = setting == "model.text" and not model.target.startswith("decoders.models.llamagen.")
    return TOKENIZERS if tokens else WEIGHTS


def metric_weights(config: StudyConfig) -> tuple[list[str], Path | None]:
    """The networks that a study's metric reads from their public files, and in which folder; None:
    the usual one."""
    from metrics.official.checkpoint import FILES

    kwargs = config.metric.kwargs if config.metric else {}
    given = kwargs.get("weights") or {}
    keys = [key for key in given if key in FILES and given[key] is None and kwargs.get(key, True)]
    return keys, Path(given["folder"]) if given.get("folder") else None


def on_disk(source: str) -> bool:
    """Whether a source is a file or folder here."""
    return Path(source).expanduser().exists()


def main_of(repository: str) -> Path:
    """The file of the hub's cache that says which commit its `main` is."""
    from huggingface_hub.constants import HF_HUB_CACHE
    from huggingface_hub.file_download import repo_folder_name

    folder = repo_folder_name(repo_id=repository, repo_type="model")
    return Path(HF_HUB_CACHE) / folder / "refs" / "main"
