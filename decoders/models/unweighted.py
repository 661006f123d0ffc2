"""Models at official dimensions with random weights: what a step costs, without the checkpoint.

Time, memory and bandwidth of a step depend on shapes alone, so they can be measured where a
checkpoint cannot be had. Codes and acceptance of such a model mean nothing: there is no tokenizer,
so no pictures, and drafts are hardly ever accepted. Acceptance is replayed instead
(`decoders.loops.replayed`).

Sizes are those of `decoders.models.sizes`; conventions (rotation, padding, norms) are those of the
loaders, which read the shape off an index of tensors that have no values.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from decoders.api import DecoderError, ImageModel, Sampling, TextFeatures
from decoders.models import hub, llamagen
from decoders.models.checkpoint import Checkpoint, assign
from decoders.models.eagle_net import ChameleonEagleNet, EagleNet
from decoders.models.families import ANOLE, EMU3, JANUS, LUMINA
from decoders.models.parts import pad_head
from decoders.models.shape import TransformerConfig
from decoders.models.sizes import RELEASED
from decoders.models.transformer import Transformer, cast, empty
from decoders.models.vq.tokenizer import NoTokenizer
from decoders.models.weights import dtype_of

NOWHERE = Path("random weights")
TEXT_SEED = 1
WHY = "a model with random weights has none; load a checkpoint, as model=tiny does"
SHORTEST = 0.25  # of the prefix that even the shortest prompt fills


# By whose loader's conventions; LlamaGen's where no family is named.
FAMILIES: dict[str, hub.Family] = {
    "anole_7b": ANOLE, "lumina_mgpt_7b_768": LUMINA, "janus_pro_7b": JANUS, "emu3_gen": EMU3,
}  # fmt: skip


def config_of(preset: str, grid: int | None = None) -> TransformerConfig:
    """The target's configuration, made by the loader of its family; grid: codes a side in place of
    the released model's. DecoderError on an unknown name or an impossible grid."""
    if preset not in RELEASED:
        raise DecoderError(f"unknown preset {preset!r}; known: {', '.join(RELEASED)}")
    (shape, _), family = RELEASED[preset], FAMILIES.get(preset)
    if grid is None:
        grid = shape.grid
    elif not 2 <= grid <= shape.grid:
        raise DecoderError(
            f"model.grid is codes a side, 2 to {shape.grid} for {preset}, found {grid}"
        )
    if family is None:
        kind: dict[str, Any] = {"conditioning": "class"} if shape.classes else {}
        same = ("vocab", "width", "layers", "ffn", "prefix", "text_width", "classes")
        return TransformerConfig(
            **{name: getattr(shape, name) for name in same},
            heads=shape.heads or llamagen.heads_of(shape.width, NOWHERE),
            grid=grid,
            **kind,
            **llamagen.RELEASED,
        )
    config: dict[str, Any] = hub.described(shape)
    if family is JANUS:  # words alone
        config["vocab_size"] -= shape.vocab
    opened = Checkpoint(NOWHERE, config, {})
    return hub.config_of(family, opened, shape.vocab, grid, shape.prefix)


def load(
    preset: str = "llamagen_xl_256",
    device: str = "cpu",
    dtype: str = "bfloat16",
    seed: int = 0,
    cfg: float = 7.5,
    top_k: int = 1000,
    grid: int | None = None,
) -> ImageModel:
    """Target, EAGLE drafter and codebook of a preset with random weights; the text encoder makes
    features up. cfg, top_k: the usual sampling of the released model. grid: codes a side where
    whole images would take too long; steps cost nearly the same. Raises DecoderError."""
    shape, place, kind = config_of(preset, grid), torch.device(device), dtype_of(dtype)
    generator = torch.Generator(device=place).manual_seed(seed)
    target: Transformer = empty(Transformer, shape)
    randomise(target, shape.layers, kind, place, generator)
    pad_head(target)
    net = ChameleonEagleNet if shape.tokens else EagleNet
    drafter: EagleNet = empty(net, replace(shape, layers=1))
    randomise(drafter, 1, kind, place, generator)
    latent = torch.randn(shape.vocab, RELEASED[preset][1].latent, generator=generator, device=place)
    text: Any = MadeUpText(shape, place, kind)
    if shape.conditioning == "class":
        text = llamagen.LabelEncoder(shape.classes, device=place)
    return ImageModel(
        name=f"{preset}_random",
        target=cast(target, place, kind),
        text=text,
        tokenizer=NoTokenizer(WHY, nn.functional.normalize(latent, dim=-1)),
        sampling=Sampling(cfg=cfg, top_k=min(top_k, shape.vocab)),
        device=place,
        dtype=kind,
        weights_sha256={f"{preset}, {shape.grid} x {shape.grid} codes": f"random, seed {seed}"},
        drafters={"eagle": cast(drafter, place, kind)},
    )


def randomise(
    module: nn.Module,
    layers: int,
    dtype: torch.dtype,
    device: torch.device,
    generator: torch.Generator,
) -> None:
    """Fills every parameter of a module on the meta device, in its final dtype and place.

    Uniform with variance 1 / fan-in, what adds to the residual stream over sqrt(2 layers): states
    of the size of one at any depth, so logits of the size of one, finite and nearly flat. Norms are
    the identity, biases zero.
    """
    for name, parameter in list(module.named_parameters()):
        value = torch.empty(parameter.shape, dtype=dtype, device=device)
        if name.endswith("bias"):
            value.zero_()
        elif "norm" in name:
            value.fill_(1)
        else:
            table = "embed" in name and not name.endswith((".fc1.weight", ".fc2.weight"))
            scale = 1.0 if table else parameter.shape[-1] ** -0.5
            if name.endswith((".wo.weight", ".w2.weight")):
                scale *= (2 * layers) ** -0.5
            reach = 3**0.5 * scale  # of a uniform distribution of that deviation
            value.uniform_(-reach, reach, generator=generator)
        assign(module, name, value)


@dataclass(frozen=True)
class MadeUpText:
    """Features (or token ids) that are a function of the prompt, left-padded to as many positions
    as it has letters, at least a quarter of P."""

    cfg: TransformerConfig
    device: torch.device
    dtype: torch.dtype

    def encode(self, prompts: list[str]) -> TextFeatures:
        """Prompts -> features [B, P, F], or ids [B, P] with those of the unconditional prompt."""
        if not prompts or not all(prompt.strip() for prompt in prompts):
            raise DecoderError(f"expected prompts that are not empty, found {prompts!r}")
        size = self.cfg.prefix
        used = [min(max(len(p), round(SHORTEST * size)), size) for p in prompts]
        place = torch.arange(size)
        mask = torch.stack([place >= size - n for n in used])  # [B, P]
        rows = torch.stack([self._row(prompt) for prompt in prompts])  # [B, P, F] or [B, P]
        if self.cfg.conditioning != "tokens":
            features = (rows * mask[..., None]).to(self.device, self.dtype)
            return TextFeatures(features, mask.to(self.device))
        alone = (place >= size - 2).expand_as(mask)  # [B, P]: a start and an image token
        own = [t.to(self.device) for t in (rows * mask, mask, rows * alone, alone)]
        return TextFeatures(*own)

    def _row(self, prompt: str) -> Tensor:
        digest = hashlib.sha256(f"{TEXT_SEED}\n{prompt}".encode()).digest()
        generator = torch.Generator().manual_seed(int.from_bytes(digest[:7], "big"))
        if self.cfg.conditioning == "tokens":
            return torch.randint(self.cfg.tokens, (self.cfg.prefix,), generator=generator)
        return torch.randn(self.cfg.prefix, self.cfg.text_width, generator=generator)
