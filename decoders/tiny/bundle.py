"""Loads the embedded model: target, text encoder, tokenizer and drafter, checksummed.

``weights/models.json`` holds, for every part, its configuration, its SHA-256, those of the parts
that it was trained with (`TRAINED_WITH`), and its figures; it is written by the recipes and read
here. A target that was trained on another tokenizer's codes draws noise without any error,
so parts that do not belong together are refused.

The small targets of `TARGETS` lie in ``weights/targets``, with the text encoder that they were
trained with, and share the tokenizer.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any

import torch
from torch import nn

from decoders.api import DecoderError, ImageModel, Sampling
from decoders.kinds import validate
from decoders.models.loading.checkpoint import cast
from decoders.models.loading.weights import dtype_of, load_into, read_json, read_state
from decoders.models.nets.eagle import EagleNet
from decoders.models.nets.flash import FlashConfig, FlashTransformer
from decoders.models.nets.grouped import GroupedConfig, GroupedTransformer
from decoders.models.nets.shape import TransformerConfig
from decoders.models.nets.transformer import Transformer
from decoders.models.text.words import WordEncoder, WordEncoderConfig
from decoders.models.vq.llamagen_vq import LlamaGenVQ, VQConfig
from decoders.models.vq.tokenizer import VQTokenizer
from decoders.propose.drafters.common.drafter import WeightsFile

WEIGHTS = Path(__file__).parent / "weights"
CARD = "models.json"
# The targets that predict several codes per forward, and their control: fields of `GroupedConfig`,
# of the last one of `FlashConfig`.
# They are trained when they are named (`python -m bench train recipe=tiny stages=[par]`).
TARGETS: dict[str, dict[str, Any]] = {
    "plain": {},
    "par": {"order": "regions", "span": 2},
    "saic": {"span": 4},
    "coral": {"span": 4, "refines": True},
    "flash": {"start": 2, "extra": 2},
}
# The parts whose weights a part needs to be the very ones of its own training. A target's codes are
# the tokenizer's, its captions the text encoder's, which was trained along with it.
TRAINED_WITH: dict[str, tuple[str, ...]] = {
    "vq": (),
    "text": ("vq", "target"),
    "target": ("vq", "text"),
    "eagle": ("vq", "text", "target"),
    "eagle3": ("vq", "text", "target"),
}
TRAINED_WITH |= dict.fromkeys(TARGETS, TRAINED_WITH["target"])
TRAINED_WITH["flash"] += ("plain",)  # it begins with its weights
KINDS: dict[str, tuple[Callable[[Any], nn.Module], type]] = {
    "vq": (LlamaGenVQ, VQConfig),
    "text": (WordEncoder, WordEncoderConfig),
    "target": (Transformer, TransformerConfig),
    "eagle": (EagleNet, TransformerConfig),
    **dict.fromkeys(TARGETS, (GroupedTransformer, GroupedConfig)),
    "flash": (FlashTransformer, FlashConfig),
}
STAGE_OF = {"text": "target", "eagle": "drafter"}  # of parts with another name


@dataclass(frozen=True)
class Part:
    """The entries of models.json that loading a part needs. sampling: of the target alone. file:
    its weights, from the card's folder; empty: in it, under the part's name. trained_with: SHA-256
    of other parts."""

    config: dict[str, Any]
    sha256: str
    file: str = ""
    trained_with: dict[str, str] = field(default_factory=dict)
    sampling: dict[str, Any] = field(default_factory=dict)


def config_of(kind: type, values: dict[str, Any], origin: Path) -> Any:
    """A frozen configuration dataclass from JSON; unknown or missing keys are an error."""
    return validate(f"{origin}: configuration of {kind.__name__}", values, kind)


def part_of(card: Mapping[str, Any], name: str, path: Path) -> Part:
    """One part of models.json. Raises DecoderError."""
    if name not in card:
        raise DecoderError(f"{path} does not describe {name!r}; run `make tiny`")
    entry = validate(f"{path}: {name}", card[name], dict[str, Any])
    needed = {field.name: entry[field.name] for field in fields(Part) if field.name in entry}
    part: Part = validate(f"{path}: {name}", needed, Part)
    return part


def load_part(folder: Path, card: Mapping[str, Any], name: str) -> tuple[Any, str]:
    """One part of `KINDS` with its checksummed weights, frozen, on the CPU; and their SHA-256."""
    kind, config = KINDS[name]
    part = part_of(card, name, folder / CARD)
    module = kind(config_of(config, part.config, folder / CARD))
    path = folder / (part.file or f"{name}.safetensors")
    load_into(module, read_state(path, part.sha256), str(path))
    return module.eval().requires_grad_(False), part.sha256


def check_together(folder: Path, card: Mapping[str, Any], parts: Sequence[str]) -> None:
    """Raises DecoderError where one of `parts` was trained with other weights than the card's."""
    path = folder / CARD
    for part in parts:
        for other, wanted in sorted(part_of(card, part, path).trained_with.items()):
            if other not in card:
                continue  # it is not loaded either
            given = part_of(card, other, path).sha256
            if given != wanted:
                raise DecoderError(
                    f"{path}: the weights do not belong together. {part} was trained with {other} "
                    f"{wanted[:12]}, found {other} {given[:12]}. Train the stage again (`python -m "
                    f"bench train recipe=tiny stages=[{STAGE_OF.get(part, part)}] "
                    f"weights={folder}`), or restore all files of one training"
                )


def shipped_folder(target: str) -> Path:
    """The folder of a target that comes with the program."""
    return WEIGHTS / "targets" if target in TARGETS else WEIGHTS


def load(
    device: str = "cpu",
    dtype: str = "bfloat16",
    checkpoint: str | None = None,
    drafters: bool = True,
    target: str = "target",
    targets: Sequence[str] = (),
) -> ImageModel:
    """An embedded model on a device. checkpoint: a folder of this layout; None: the shipped one.
    drafters: whether they are loaded too. target: the part that is the target; one of `TARGETS`
    has no drafters. targets: further ones. Raises DecoderError."""
    torch_device, kind = torch.device(device), dtype_of(dtype)
    folder = shipped_folder(target) if checkpoint is None else Path(checkpoint)
    card = read_json(folder / CARD)
    drafters = drafters and target == "target"
    names = ("vq", "text", target, *targets, *["eagle"] * drafters)
    others = ["eagle3"] if drafters and "eagle3" in card else []  # read where it is used
    check_together(folder, card, (*names, *others))
    loaded = {name: load_part(folder, card, name) for name in names}
    parts = {name: module for name, (module, _) in loaded.items()}
    path = folder / CARD
    named: dict[str, Any] = {
        name: WeightsFile(folder / f"{name}.safetensors", part_of(card, name, path).sha256)
        for name in others
    }
    if drafters:
        named["eagle"] = cast(parts["eagle"], torch_device, kind)
    return ImageModel(
        name="tiny",
        target=cast(parts[target], torch_device, kind),
        text=parts["text"].to(torch_device),
        tokenizer=VQTokenizer(parts["vq"].to(torch_device)),
        sampling=config_of(Sampling, part_of(card, target, path).sampling, path),
        device=torch_device,
        dtype=kind,
        weights_sha256={name: sha256 for name, (_, sha256) in loaded.items()},
        drafters=named,
        targets={name: cast(parts[name], torch_device, kind) for name in targets},
    )
