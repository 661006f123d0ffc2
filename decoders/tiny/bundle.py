"""Loads the embedded model: target, text encoder, tokenizer and drafter; and its scenes as data.

``weights/models.json``, written by the recipes, holds for every part its configuration, SHA-256,
figures, and the SHA-256 of the parts that it was trained with. A target trained on another
tokenizer's codes draws noise without any error, so parts that do not belong together are refused.
The small targets of `TARGETS` lie in ``weights/targets``, with the text encoder that they were
trained with.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any

import torch
from torch import nn

from decoders.api import DecoderError, ImageModel, Sampling
from decoders.files import read_object
from decoders.kinds import validate
from decoders.models.llamagen_vq import LlamaGenVQ, VQConfig
from decoders.models.loading.checkpoint import cast
from decoders.models.loading.weights import dtype_of, load_into, read_state
from decoders.models.nets.eagle import EagleNet
from decoders.models.nets.flash import FlashConfig, FlashTransformer
from decoders.models.nets.grouped import GroupedConfig, GroupedTransformer
from decoders.models.nets.shape import TransformerConfig
from decoders.models.nets.transformer import Transformer
from decoders.models.pictures import VQTokenizer
from decoders.models.prompts import WordEncoder, WordEncoderConfig
from decoders.propose.drafters.common.drafter import WeightsFile
from decoders.tiny.render import scene_batch
from decoders.training.states import Images, encode_pictures

WEIGHTS_FOLDER = Path(__file__).parent / "weights"
CARD_FILE = "models.json"
# The targets that predict several codes per forward, and their control: fields of `GroupedConfig`,
# of the last one of `FlashConfig`. They are trained when they are named (`python -m bench train
# recipe=tiny stages=[par]`).
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
}
OPTIONAL = "eagle3", "dflash", "dspark", "medusa"  # drafters that are read where they are used
TRAINED_WITH |= dict.fromkeys(OPTIONAL, TRAINED_WITH["eagle"])
TRAINED_WITH |= dict.fromkeys(TARGETS, TRAINED_WITH["target"])
TRAINED_WITH["flash"] += ("plain",)  # it begins with its weights
PART_CLASSES: dict[str, tuple[Callable[[Any], nn.Module], type]] = {
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
    """What loading a part needs of models.json. sampling: of the target alone. file:
    its weights, from the card's folder; empty: in it, under the part's name. trained_with: SHA-256
    of other parts."""

    config: dict[str, Any]
    sha256: str
    file: str = ""
    trained_with: dict[str, str] = field(default_factory=dict)
    sampling: dict[str, Any] = field(default_factory=dict)


def part_of(card: Mapping[str, Any], name: str, path: Path) -> Part:
    """Reads one part of models.json. Raises DecoderError."""
    if name not in card:
        raise DecoderError(f"{path} does not describe {name!r}; run `make tiny`")
    entry = validate(f"{path}: {name}", card[name], dict[str, Any])
    needed = {field.name: entry[field.name] for field in fields(Part) if field.name in entry}
    part: Part = validate(f"{path}: {name}", needed, Part)
    return part


def load_part(folder: Path, card: Mapping[str, Any], name: str) -> tuple[Any, str]:
    """Loads one part of `PART_CLASSES`, checksummed, frozen, on the CPU; and the SHA-256 of its
    weights."""
    kind, config = PART_CLASSES[name]
    part = part_of(card, name, folder / CARD_FILE)
    module = kind(validate(f"{folder / CARD_FILE}: configuration of {name}", part.config, config))
    path = folder / (part.file or f"{name}.safetensors")
    load_into(module, read_state(path, part.sha256), str(path))
    return module.eval().requires_grad_(False), part.sha256


def check_together(folder: Path, card: Mapping[str, Any], parts: Sequence[str]) -> None:
    """Raises DecoderError where one of `parts` was trained with other weights than the card's."""
    path = folder / CARD_FILE
    for part in parts:
        for other, wanted in sorted(part_of(card, part, path).trained_with.items()):
            if other not in card:
                continue  # it is not loaded either
            sha256 = part_of(card, other, path).sha256
            if sha256 != wanted:
                stage = STAGE_OF.get(part, part)
                raise DecoderError(
                    f"{path}: the weights do not belong together. {part} was trained with {other} "
                    f"{wanted[:12]}, found {other} {sha256[:12]}. Train it again (`python -m bench "
                    f"train recipe=tiny stages=[{stage}] weights={folder}`), or restore all files "
                    "of one training"
                )


def load(
    device: str = "cpu",
    dtype: str = "bfloat16",
    checkpoint: str | None = None,
    drafters: bool = True,
    target: str = "target",
    targets: Sequence[str] = (),
) -> ImageModel:
    """Loads an embedded model on a device. checkpoint: a folder of this layout; None: the shipped
    one. drafters: whether they are loaded too. target: the part that is the target; one of
    `TARGETS` has no drafters. targets: further ones. Raises DecoderError."""
    torch_device, kind = torch.device(device), dtype_of(dtype)
    shipped = WEIGHTS_FOLDER / "targets" if target in TARGETS else WEIGHTS_FOLDER
    folder = shipped if checkpoint is None else Path(checkpoint)
    path = folder / CARD_FILE
    card = read_object(path)
    drafters = drafters and target == "target"
    names = ("vq", "text", target, *targets, *["eagle"] * drafters)
    later = [name for name in OPTIONAL if drafters and name in card]
    check_together(folder, card, (*names, *later))
    parts, hashes = {}, {}
    for name in names:
        parts[name], hashes[name] = load_part(folder, card, name)
        if name not in ("vq", "text"):
            cast(parts[name], torch_device, kind)
    named: dict[str, Any] = {"eagle": parts["eagle"]} if drafters else {}
    for name in later:
        sha256 = part_of(card, name, path).sha256
        named[name] = WeightsFile(folder / f"{name}.safetensors", sha256)
    sampling = part_of(card, target, path).sampling
    return ImageModel(
        name="tiny",
        target=parts[target],
        text=parts["text"].to(torch_device),
        tokenizer=VQTokenizer(parts["vq"].to(torch_device)),
        sampling=validate(f"{path}: sampling of {target}", sampling, Sampling),
        device=torch_device,
        dtype=kind,
        weights_sha256=hashes,
        drafters=named,
        targets={name: parts[name] for name in targets},
    )


@dataclass(frozen=True)
class Scenes:
    """The embedded scenes as an `ImageSource` of a drafter's training (`data=scenes`), drawn and
    encoded on the fly: no two alike, none held out twice. offset: the first index of the train
    split, past what tokenizer and target have seen."""

    model: ImageModel
    offset: int = 5_000_000
    train: None = None
    valid: None = None

    def images(self, split: str, indices: Sequence[int]) -> Images:
        first = self.offset if split == "train" else 0
        batch = scene_batch(split, [first + i for i in indices])
        codes = encode_pictures(self.model, torch.from_numpy(batch.images))  # of [B, 3, 64, 64]
        return Images(self.model.text.encode(batch.captions).to(self.model.device), codes)
