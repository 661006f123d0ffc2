"""Which checkpoints a study's model reads, and where they lie.

Weights of the quality metrics are never fetched: a run stops at its start where they are missing,
and says where to get them (`metrics.official.checkpoint`).
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from bench.config.schema import LoaderConfig, StudyConfig

HUB_ID = re.compile(r"[\w.-]+/[\w.-]+")
FILES = {  # of a repository that holds several models: the one that is read
    "peizesun/llamagen_t2i": "vq_ds16_t2i.pt",
    "FoundationVision/LlamaGen": "vq_ds16_c2i.pt",
}


def embedded(model: LoaderConfig) -> bool:
    """Whether a model's weights are those that the project carries."""
    given = model.kwargs.get("checkpoint")
    return given is None and model.target.startswith("decoders.tiny.")


def sources_of(config: StudyConfig) -> list[str]:
    """Paths and hub ids of what a study's model reads: target, tokenizer, text encoder and the
    drafters of the study's decoders; each once."""
    kwargs = config.model.kwargs
    if embedded(config.model) or not kwargs.get("checkpoint"):
        return []
    found = [kwargs["checkpoint"], kwargs.get("tokenizer")]
    if config.prompts.name != "features":
        found.append(kwargs.get("text"))
    named = kwargs.get("drafters") or {}
    drafters = [e.spec.drafter.kwargs.get("checkpoint") for e in config.decoders if e.spec.drafter]
    found += [named.get(name, name) for name in drafters]
    return [str(source) for source in dict.fromkeys(found) if source]


def on_disk(source: str) -> bool:
    """Whether a source is a file or folder here."""
    return Path(source).expanduser().exists()


def from_hub(source: str) -> bool:
    """Whether a source is a repository of the hub, and no file or folder here."""
    return bool(HUB_ID.fullmatch(source)) and not on_disk(source)


def main_of(repository: str) -> Path:
    """The file of the hub's cache that says which commit its `main` is."""
    from huggingface_hub.constants import HF_HUB_CACHE
    from huggingface_hub.file_download import repo_folder_name

    folder = repo_folder_name(repo_id=repository, repo_type="model")
    return Path(HF_HUB_CACHE) / folder / "refs" / "main"
