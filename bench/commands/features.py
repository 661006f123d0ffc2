"""`python -m bench features`: the text features of a prompt set in a file, for `prompts=features`.

Why: the text encoder can be larger than the target. Encoded once, on any machine, a study needs it
no more and decodes the same images: the file keeps features in the precision of the encoder, ids
and categories of the prompts included.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from bench.config.words import apart, given, split, whole
from bench.console import progress, say
from bench.data.errors import ConfigError
from bench.data.files import ready_file, require_space

if TYPE_CHECKING:
    import torch

    from bench.config.schema import StudyConfig
    from bench.prompts import PromptSet
    from decoders.api import TextEncoder, TextFeatures

BATCH = 8  # prompts encoded and written at once
OWN = ("out", "text.checkpoint", "text.dtype", "text.length")


def cmd_features(words: Sequence[str]) -> int:
    """Write the text features of a prompt set to a file (prompts=features reads it).
    Settings: ...
        out=FILE             the file, a .safetensors
        prompts=NAME         the prompts (`list prompts`), with their settings
        model=NAME           the model whose text encoder is used
        text.checkpoint=DIR  or a T5 encoder of its own: folder or hub id
        text.dtype=NAME      its dtype (default: backend.dtype)
        text.length=N        its tokens per prompt (default: 120)
    Example: features prompts=file prompts.path=mine.txt model=tiny out=mine.safetensors
    """
    from bench.config.compose import compose_study
    from bench.config.plugins import call
    from bench.data.files import write_atomically
    from bench.measure.device import prepare
    from decoders.models.text.features import write_features

    own, rest = _own(words)
    out = Path(own["out"])
    if out.exists():
        raise ConfigError(f"{out} is there already; remove it or choose another out=")
    config = compose_study(rest)
    ready_file(out)
    prompts: PromptSet = call(config.prompts, count=None)
    device = prepare(config.backend)
    encoder = _encoder(own, config, device)
    texts = [prompt.text for prompt in prompts]
    if hasattr(encoder, "check"):
        encoder.check(texts)
    first = encoder.encode(texts[:1])
    dtype = getattr(encoder, "dtype", first.features.dtype)
    need = first.features[0].numel() * dtype.itemsize * len(texts)
    require_space(out, need, "the features", "choose another out=, or write parts, prompts.shard=")
    metadata = {"id": [p.id for p in prompts], "category": [p.category for p in prompts]}
    with progress(len(texts), "features", unit="prompt") as bar:
        parts = _parts(encoder, texts, bar)
        write_atomically(out, lambda file: write_features(file, parts, texts, dtype, metadata))
    shape = " x ".join(map(str, (len(texts), *first.features.shape[1:])))
    say(f"{out}: {shape} {str(dtype).removeprefix('torch.')}, {out.stat().st_size / 1e6:.1f} MB")
    say(f"use it with prompts=features prompts.path={out}")
    return 0


def _own(words: Sequence[str]) -> tuple[dict[str, str], list[str]]:
    """The settings of this command, and the words of the study."""
    named, rest = apart(words, OWN)
    wrong = [word for word in rest if split(word).group == "text"]
    own = given([*named, *wrong], OWN, "features")
    if not own.get("out", "").endswith(".safetensors"):
        raise ConfigError("say where the features go with out=FILE.safetensors")
    return own, rest


def _encoder(own: dict[str, str], config: StudyConfig, device: torch.device) -> TextEncoder:
    if "text.checkpoint" in own:
        from decoders.models.text.t5 import T5Encoder

        length = whole("text.length", own.get("text.length", "120"), 1)
        dtype = own.get("text.dtype", config.backend.dtype)
        return T5Encoder(own["text.checkpoint"], length=length, device=device, dtype=dtype)
    unused = sorted(set(own) - {"out"})
    if unused:
        raise ConfigError(f"{unused[0]} needs text.checkpoint=; a model's own encoder has its own")
    from bench.run.session import load_model

    return load_model(config, device).text


def _parts(encoder: TextEncoder, texts: list[str], bar: Any) -> Iterator[TextFeatures]:
    for start in range(0, len(texts), BATCH):
        part = encoder.encode(texts[start : start + BATCH])
        yield part
        bar.update(part.batch)
