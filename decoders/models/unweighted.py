"""Models at official dimensions with random weights: what a step costs, without the checkpoint.

Time, memory and bandwidth of a step depend on shapes alone, so they can be measured where a
checkpoint cannot be had. Codes and acceptance of such a model mean nothing: there is no tokenizer,
so no pictures, and drafts are hardly ever accepted. Acceptance is replayed instead
(`decoders.loops.replayed`).

Only sizes are written down here; conventions (rotation, padding, norms) are those of the loaders,
which read the shape off an index of tensors that have no values.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from decoders.api import DecoderError, ImageModel, Sampling, TextEncoder, TextFeatures
from decoders.models import chameleon, emu3, janus, llamagen
from decoders.models.checkpoint import Checkpoint, assign
from decoders.models.eagle_net import ChameleonEagleNet, EagleNet
from decoders.models.head import pad_head
from decoders.models.shape import TransformerConfig
from decoders.models.text.labels import LabelEncoder
from decoders.models.transformer import Transformer, cast, empty
from decoders.models.weights import dtype_of

NOWHERE = Path("random weights")
TEXT_SEED = 1
SHORTEST = 0.25  # of the prefix that even the shortest prompt fills


@dataclass(frozen=True)
class Preset:
    """Sizes of a released model. codes: V; tokens: rows of the embedding where the codes are part
    of a larger vocabulary (Chameleon), else 0; latent: C of the codebook; heads: 0 where the loader
    knows them by the width; text: (P, F) of a caption's features; classes: of a class-conditional
    model; kv_heads: of keys and values, 0: as many as of queries; family: whose loader knows the
    conventions."""

    width: int
    layers: int
    ffn: int
    grid: int
    codes: int
    latent: int
    heads: int = 0
    text: tuple[int, int] = (0, 0)
    classes: int = 0
    tokens: int = 0
    prefix: int = 0
    row_end: bool = False
    kv_heads: int = 0
    family: str = "chameleon"


_LLAMAGEN: dict[str, Any] = {"codes": 16384, "latent": 8}
_XL: dict[str, Any] = {"width": 1280, "layers": 36, "ffn": 3584, "text": (120, 2048)}
_7B: dict[str, Any] = {
    "width": 4096, "layers": 32, "heads": 32, "ffn": 11008, "codes": 8192, "latent": 256,
    "tokens": 65536, "prefix": 128,
}  # fmt: skip
PRESETS = {
    "llamagen_xl_256": Preset(**_LLAMAGEN, **_XL, grid=16),
    "llamagen_xl_512": Preset(**_LLAMAGEN, **_XL, grid=32),
    "llamagen_3b": Preset(**_LLAMAGEN, width=3200, layers=24, ffn=8704, grid=24, classes=1000),
    "anole_7b": Preset(**_7B, grid=32),
    "lumina_mgpt_7b_768": Preset(**_7B, grid=48, row_end=True),
    "janus_pro_7b": Preset(
        width=4096,
        layers=30,
        heads=32,
        ffn=11008,
        codes=16384,
        latent=8,
        tokens=102400,
        prefix=128,
        grid=24,
        family="janus",
    ),
    "emu3_gen": Preset(
        width=4096,
        layers=32,
        heads=32,
        kv_heads=8,
        ffn=14336,
        codes=32768,
        latent=4,
        tokens=184622,
        prefix=160,
        grid=90,
        row_end=True,
        family="emu3",
    ),
}


def config_of(preset: str, grid: int | None = None) -> TransformerConfig:
    """The target's configuration, made by the loader of its family; grid: codes a side in place of
    the released model's. DecoderError on an unknown name or an impossible grid."""
    if preset not in PRESETS:
        raise DecoderError(f"unknown preset {preset!r}; known: {', '.join(PRESETS)}")
    size = PRESETS[preset]
    if grid is not None:
        if not 2 <= grid <= size.grid:
            raise DecoderError(
                f"model.grid is codes a side, 2 to {size.grid} for {preset}, found {grid}"
            )
        size = replace(size, grid=grid)
    if size.tokens:
        config = {
            "hidden_size": size.width,
            "intermediate_size": size.ffn,
            "num_attention_heads": size.heads,
            "num_hidden_layers": size.layers,
            "vocab_size": size.tokens,
        }
        codes = size.codes + size.row_end
        opened = Checkpoint(NOWHERE, config, {})
        if size.family != "chameleon":
            config["num_key_value_heads"] = size.kv_heads or size.heads
            family = {"janus": janus, "emu3": emu3}[size.family]
            return family.config_of(opened, codes, size.grid, size.prefix)
        return chameleon.config_of(opened, codes, size.grid, size.prefix, size.row_end)
    return llamagen.config_of(_index(size), size.grid, size.heads or None)


def _index(size: Preset) -> Checkpoint:
    """An original LlamaGen checkpoint of that size whose tensors have shapes only."""
    shapes: dict[str, tuple[int, ...]] = {"tok_embeddings.weight": (size.codes, size.width)}
    for layer in range(size.layers):
        shapes[f"layers.{layer}.feed_forward.w1.weight"] = (size.ffn, size.width)
    if size.classes:
        shapes["cls_embedding.embedding_table.weight"] = (size.classes + 1, size.width)
    else:
        shapes["cls_embedding.uncond_embedding"] = size.text
    tensors = {name: torch.empty(shape, device="meta") for name, shape in shapes.items()}
    return Checkpoint(NOWHERE, {}, dict.fromkeys(tensors, NOWHERE), tensors)


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
    drafter: EagleNet
    if shape.tokens:
        drafter = empty(ChameleonEagleNet, replace(shape, layers=1))
    else:
        drafter = empty(EagleNet, replace(shape, layers=1))
    randomise(drafter, 1, kind, place, generator)
    latent = torch.randn(shape.vocab, PRESETS[preset].latent, generator=generator, device=place)
    return ImageModel(
        name=f"{preset}_random",
        target=cast(target, place, kind),
        text=_text(shape, place, kind),
        tokenizer=Codebook(nn.functional.normalize(latent, dim=-1)),
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


def _text(cfg: TransformerConfig, device: torch.device, dtype: torch.dtype) -> TextEncoder:
    if cfg.conditioning == "class":
        return LabelEncoder(cfg.classes, device=device)
    return MadeUpText(cfg, device, dtype)


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


@dataclass(frozen=True)
class Codebook:
    """Random latents for the neighbours of codes, and no pictures (`ImageModel.draws` is false)."""

    codebook: Tensor  # [V, C] float32, rows of length one
    missing = True

    @property
    def raw_codebook(self) -> Tensor:
        return self.codebook

    def decode(self, codes: Tensor) -> Tensor:
        """Raises DecoderError: these codes stand for nothing."""
        raise DecoderError(
            "a model with random weights draws no pictures; load a checkpoint, as model=tiny does"
        )
