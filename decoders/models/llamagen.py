"""LlamaGen's released checkpoints (2406.06525): text-conditional XL, class-conditional B to 3B.

Two layouts are read: the original ``.pt`` and the hub conversion with Llama names, whose rotation
is interleaved too, so nothing is permuted. What config.json does not say is read off the shapes.

FlashAR's checkpoints (2605.09430) are in the original layout, with the vertical layers behind the
others. How many these are, and where they begin, no tensor says: a config.json with the names of
the released code does.
"""

from __future__ import annotations

import math
import re
from dataclasses import asdict
from typing import Any

import torch

from decoders.api import DecoderError, ImageModel, Sampling, TextFeatures
from decoders.kinds import Amount, NotNegative, Size
from decoders.models.loading.checkpoint import (
    Checkpoint,
    count_parts,
    open_checkpoint,
    require_side,
)
from decoders.models.loading.layouts import FLASH_NORM, ORIGINAL, Layout, layout_of, load_target
from decoders.models.loading.weights import dtype_of
from decoders.models.nets.flash import FlashConfig
from decoders.models.nets.shape import TransformerConfig
from decoders.models.pictures import LLAMAGEN, load_vq
from decoders.models.t5 import T5_HUB_ID, T5Encoder

HEAD_DIM = {3200: 100, 4096: 128}  # 3B and 7B; all other sizes have heads of 64

LAYOUTS = (  # the hub conversion, the original
    Layout("model.", "model.embed_tokens.weight", "lm_head.weight"),
    Layout("", "tok_embeddings.weight", "output.weight", layer=ORIGINAL),
)


def config_of(checkpoint: Checkpoint, layout: Layout, grid: int | None) -> TransformerConfig:
    """Reads the target's shape from config.json where there is one, else off the tensors' shapes.
    grid: image side in codes, needed where config.json has no `block_size`. Raises DecoderError
    where config.json contradicts it or the tensors. FlashAR's tensors are a `FlashConfig`."""
    config, path, index = checkpoint.config, checkpoint.path, checkpoint.index
    first, gate = f"{layout.prefix}layers.0.", layout.layer["feed_forward.w13"][0]
    vocab, width = checkpoint.shape(layout.embedding, 2)
    layers = count_parts(checkpoint, rf"{re.escape(layout.prefix)}layers\.(\d+)\..+")
    extra = 0
    if FLASH_NORM in index:
        extra = int(config.get("medusa_attention_num", 0))
        if not 0 < extra < layers or "vertical_start_layer" not in config:
            raise DecoderError(
                f"{path}: no tensor says how many of FlashAR's {layers} layers are vertical, and "
                "where they begin; put a config.json with medusa_attention_num and "
                "vertical_start_layer, as it was trained, next to it"
            )
        layers -= extra
    ffn = checkpoint.shape(f"{first}{gate}.weight", 2)[0]
    sizes = {"vocab_size": vocab, "hidden_size": width}
    sizes |= {"num_hidden_layers": layers, "intermediate_size": ffn}
    for name, size in sizes.items():
        if config.get(name) is not None and int(config[name]) != size:
            raise DecoderError(
                f"{path}: config.json says {name} {config[name]}, the tensors {size}; the two files"
                " do not belong together: copy both from one release"
            )
    head = HEAD_DIM.get(width, 64)
    heads = int(config.get("num_attention_heads", 0)) or width // head
    if width % head and "num_attention_heads" not in config:
        raise DecoderError(
            f"{path}: no released model has width {width}, so its number of heads is not known; "
            "put a config.json with num_attention_heads next to it"
        )
    block = config.get("block_size")
    side = math.isqrt(int(block)) if block else grid
    if side is None or (block and side**2 != int(block)):
        raise DecoderError(
            f"{path}: the image side is not known (block_size {block}); set model.grid (16 for 256 "
            "pixels, 24 for 384, 32 for 512)"
        )
    require_side(checkpoint, "block_size", side, side if grid is None else grid)
    captions = f"{layout.prefix}cls_embedding.uncond_embedding"
    classes = f"{layout.prefix}cls_embedding.embedding_table.weight"
    conditioning: dict[str, Any]
    if captions in index:
        prefix, text_width = checkpoint.shape(captions, 2)
        conditioning = {"conditioning": "caption", "prefix": prefix, "text_width": text_width}
    elif classes in index:
        rows = checkpoint.shape(classes, 2)[0]
        conditioning = {"conditioning": "class", "prefix": 1, "classes": rows - 1}
    else:
        raise DecoderError(f"{path}: expected {captions} or {classes}; neither is there")
    shape = TransformerConfig(
        vocab=vocab,
        width=width,
        layers=layers,
        heads=heads,
        ffn=ffn,
        grid=side,
        norm_eps=float(config.get("rms_norm_eps", config.get("norm_eps", 1e-5))),
        rope_base=float(config.get("rope_base", config.get("rope_theta", 10000.0))),
        prefix_rope="zero",
        pads="released",  # METHODS 6
        **conditioning,
    )
    if not extra:
        return shape
    start = int(config["vertical_start_layer"])
    gated = "hv_gate_mlp.0.weight"
    return FlashConfig(
        **asdict(shape),
        start=layers if start < 0 else start,
        extra=extra,
        gate=checkpoint.shape(gated, 2)[0] if gated in index else 0,
    )


def load(
    device: str = "cpu",
    dtype: str = "bfloat16",
    checkpoint: str = "jadohu/LlamaGen-T2I",
    grid: Size | None = None,
    tokenizer: str | None = None,
    text: str | None = None,
    drafters: dict[str, str] | None = None,
    flash: str | None = None,
    cfg: NotNegative = 7.5,
    top_k: Amount = 1000,
) -> ImageModel:
    """Loads a LlamaGen model: target, VQ tokenizer, text (or class) encoder. The settings are those
    of conf/model/llamagen_xl_256.yaml and llamagen_c2i.yaml, which explain them. The target may be
    FlashAR's itself. Raises DecoderError."""
    torch_device, kind = torch.device(device), dtype_of(dtype)
    opened = open_checkpoint(checkpoint, what="LlamaGen target")
    layout = layout_of(opened, "LlamaGen", LAYOUTS)
    shape = config_of(opened, layout, grid)
    encoder: Any
    if shape.conditioning == "class":
        encoder = LabelEncoder(shape.classes, device=torch_device)
    else:
        encoder = T5Encoder(text or T5_HUB_ID, length=shape.prefix, device=torch_device, dtype=kind)
    pictures, digests = load_vq(LLAMAGEN, opened, tokenizer, shape.vocab, shape.grid, torch_device)
    target = load_target(opened, layout, shape, None, kind, torch_device)
    targets = {"flash": target} if isinstance(shape, FlashConfig) else {}
    if flash is not None:
        second = open_checkpoint(flash, what="FlashAR target")
        layout = layout_of(second, "LlamaGen", LAYOUTS)
        other = config_of(second, layout, shape.grid)
        same = ("vocab", "conditioning", "prefix", "text_width", "classes")
        unlike = [name for name in same if getattr(shape, name) != getattr(other, name)]
        if unlike or not isinstance(other, FlashConfig):
            raise DecoderError(
                f"{second.path}: expected a FlashAR checkpoint of the codes and captions of "
                f"{opened.path}, found another {', '.join(unlike) or 'model'}; set model.flash"
            )
        targets["flash"] = load_target(second, layout, other, None, kind, torch_device)
        digests = digests | {f"flash/{file}": hash for file, hash in second.sha256().items()}
    return ImageModel(
        name="llamagen",
        target=target,
        text=encoder,
        tokenizer=pictures,
        sampling=Sampling(cfg=cfg, top_k=min(top_k, shape.vocab)),
        device=torch_device,
        dtype=kind,
        weights_sha256=opened.sha256() | digests,
        drafters=dict(drafters or {}),
        targets=targets,
    )


class LabelEncoder:
    """`decoders.api.TextEncoder` of a class-conditional model: "207" -> 207."""

    def __init__(self, classes: int = 1000, device: torch.device | str = "cpu") -> None:
        self.classes, self.device = classes, torch.device(device)

    def encode(self, prompts: list[str]) -> TextFeatures:
        """Encodes class numbers to features [B, 1] int64, mask [B, 1] all valid. Raises
        DecoderError on what is not a whole number below `classes`."""
        if not prompts:
            raise DecoderError("no prompts given: expected at least one class number")
        for prompt in prompts:
            if not re.fullmatch("[0-9]+", prompt.strip()) or int(prompt) >= self.classes:
                raise DecoderError(
                    f"this model draws classes: expected a number from 0 to {self.classes - 1}, "
                    f"found {prompt!r}; use prompts=classes"
                )
        rows = [[int(prompt)] for prompt in prompts]
        features = torch.tensor(rows, dtype=torch.long, device=self.device)  # [B, 1]
        return TextFeatures(features, torch.ones_like(features, dtype=torch.bool))
