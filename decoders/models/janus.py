"""Janus-Pro-7B (2501.17811): a Llama decoder that draws with a head and a VQ tokenizer of its own.

Codes are no words of the vocabulary. A code's embedding is an aligner, two layers, over a table of
8 numbers for each code; it is computed once, while loading, and stands below the words in one
table. The head has two layers (`decoders.models.head`); pictures come from LlamaGen's VQ-16.
Two layouts are read: DeepSeek's own and transformers'.

Sources: deepseek-ai/Janus, README.md (guidance 5, temperature 1, no filter, 576 codes of 24 x 24,
logits uncond + cfg (cond - uncond)), janus/models/modeling_vlm.py (aligner, head) and
janus/models/vq_model.py (VQ-16: 16384 codes of 8 numbers, 256 channels). Sizes: config.json of
deepseek-ai/Janus-Pro-7B on the hub. Names in transformers' layout: huggingface/transformers,
src/transformers/models/janus/convert_janus_weights_to_hf.py.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from decoders.api import DecoderError, ImageModel, Sampling
from decoders.models.chameleon_layout import layer_sources
from decoders.models.checkpoint import Checkpoint, Source, fill, open_checkpoint, some
from decoders.models.hub_shape import hub_shape, text_config
from decoders.models.layouts import harmless
from decoders.models.llamagen import read_vq
from decoders.models.shape import TransformerConfig
from decoders.models.text.special import JANUS, PromptEncoder
from decoders.models.transformer import Transformer, cast, empty
from decoders.models.vq.chameleon_vq import MIDDLE
from decoders.models.vq.tokenizer import VQTokenizer
from decoders.models.weights import dtype_of

FAMILY = "Janus-Pro"
# Of transformers' LlamaConfig: DeepSeek's config.json leaves out what is equal to it.
USUAL = {"hidden_size": 4096, "intermediate_size": 11008, "num_attention_heads": 32}


@dataclass(frozen=True)
class Layout:
    """Where a release keeps its parts; `elsewhere`: parts that only see pictures or write text."""

    words: str
    embedding: str
    aligner: tuple[str, str]
    head: tuple[str, str]
    pictures: str
    elsewhere: tuple[str, ...]
    renamed: bool  # whether the VQ model has taming's names

    def picture_name(self, own: str) -> str:
        """A parameter of `LlamaGenVQ` -> its name here."""
        if not self.renamed:
            return own
        name = re.sub(r"\.mid\.(\d)\.", lambda m: f".mid.{MIDDLE[int(m[1])]}.", own)
        name = name.replace("encoder.conv_blocks", "encoder.down").replace(".res.", ".block.")
        return name.replace("decoder.conv_blocks", "decoder.up")


TRANSFORMERS = Layout(
    words="model.language_model.",
    embedding="model.generation_embeddings.weight",
    aligner=("model.generation_aligner.fc1", "model.generation_aligner.hidden_layers.0"),
    head=("model.generation_head.proj_out", "model.generation_head.vision_head"),
    pictures="model.vqmodel.",
    elsewhere=("model.vqmodel.", "model.vision_model.", "model.aligner.", "lm_head."),
    renamed=True,
)
DEEPSEEK = Layout(
    words="language_model.model.",
    embedding="gen_embed.weight",
    aligner=("gen_aligner.layers.0", "gen_aligner.layers.2"),
    head=("gen_head.output_mlp_projector", "gen_head.vision_head"),
    pictures="gen_vision_model.",
    elsewhere=("gen_vision_model.", "vision_model.", "aligner.", "language_model.lm_head."),
    renamed=False,
)


def layout_of(opened: Checkpoint) -> Layout:
    """Raises DecoderError where the checkpoint is neither release's."""
    for layout in (TRANSFORMERS, DEEPSEEK):
        if layout.embedding in opened.index:
            return layout
    raise DecoderError(
        f"{opened.path} is no {FAMILY} checkpoint: expected {TRANSFORMERS.embedding} or "
        f"{DEEPSEEK.embedding}, found {some(opened.keys())}"
    )


def config_of(opened: Checkpoint, codes: int, grid: int, prefix: int) -> TransformerConfig:
    """The target's shape from config.json; codes: V."""
    given = text_config(opened, FAMILY, ("text_config", "language_config"), USUAL)
    return hub_shape(
        opened,
        given,
        wrong={},
        family=FAMILY,
        places=16384,
        norm_eps=1e-6,
        vocab=codes,
        tokens=int(given["vocab_size"]) + codes,
        grid=grid,
        prefix=prefix,
        head="mlp",
    )


class Embeddings(Source):
    """The words' table, and under it the codes through the aligner: fc2 gelu(fc1 e)."""

    def pieces(self, checkpoint: Checkpoint) -> list[Tensor]:
        words, *rest = (checkpoint.read(name) for name in self.names)
        table, first, first_bias, second, second_bias = (tensor.float() for tensor in rest)
        return [words, F.linear(F.gelu(F.linear(table, first, first_bias)), second, second_bias)]


def sources(cfg: TransformerConfig, layout: Layout) -> dict[str, Source]:
    """Every parameter of the target."""
    aligner = [f"{part}.{kind}" for part in layout.aligner for kind in ("weight", "bias")]
    out: dict[str, Source] = {
        "tok_embeddings.weight": Embeddings(
            (f"{layout.words}embed_tokens.weight", layout.embedding, *aligner)
        ),
        "norm.weight": Source((f"{layout.words}norm.weight",)),
    }
    for own, theirs in zip(("hidden", "codes"), layout.head, strict=True):
        for kind in ("weight", "bias"):
            out[f"output.{own}.{kind}"] = Source((f"{theirs}.{kind}",))
    for n in range(cfg.layers):
        theirs = f"{layout.words}layers.{n}."
        out |= layer_sources(f"layers.{n}.", theirs, cfg)
    return out


def load_target(
    opened: Checkpoint, grid: int, prefix: int, dtype: torch.dtype, device: torch.device
) -> Transformer:
    """The target of an opened checkpoint, in either layout."""
    layout = layout_of(opened)
    codes = opened.shape(layout.embedding, 2)[0]
    cfg = config_of(opened, codes, grid, prefix)
    module: Transformer = empty(Transformer, cfg)
    module.code_tokens = torch.arange(cfg.tokens - codes, cfg.tokens)

    def unused(name: str) -> bool:
        return name.startswith(layout.elsewhere) or harmless(name)

    fill(module, sources(cfg, layout), opened, dtype, device, unused)
    return cast(module, device, dtype)


def load(
    name: str = "janus_pro_7b",
    device: str = "cpu",
    dtype: str = "bfloat16",
    checkpoint: str = "deepseek-community/Janus-Pro-7B",
    grid: int = 24,
    prefix: int = 128,
    text: str | None = None,
    drafters: dict[str, str] | None = None,
    cfg: float = 5.0,
    top_k: int = 0,
) -> ImageModel:
    """Janus-Pro: target, VQ tokenizer, prompts as tokens; 24 x 24 codes are 384 pixels.

    checkpoint: folder or hub id, in transformers' or DeepSeek's layout. grid: image side in codes.
    prefix: tokens of the longest prompt, its template included. text: tokenizer.json, or a folder
    or hub id with it; None: beside the checkpoint. drafters: names for drafter checkpoints. cfg,
    top_k: the usual sampling.
    """
    place, kind = torch.device(device), dtype_of(dtype)
    opened = open_checkpoint(checkpoint, what=f"{FAMILY} target")
    layout = layout_of(opened)
    target = load_target(opened, grid, prefix, kind, place)
    pictures = read_vq(opened, grid, layout.pictures, layout.picture_name)
    if pictures.cfg.codes != target.cfg.vocab:
        raise DecoderError(
            f"{opened.path} embeds {target.cfg.vocab} codes, its VQ tokenizer has "
            f"{pictures.cfg.codes}; do the files belong together?"
        )
    return ImageModel(
        name=name,
        target=target,
        text=PromptEncoder(opened, JANUS, prefix, text, place),
        tokenizer=VQTokenizer(pictures.to(place)),
        sampling=Sampling(cfg=cfg, top_k=min(top_k, target.cfg.vocab)),
        device=place,
        dtype=kind,
        weights_sha256=opened.sha256(),
        drafters=dict(drafters or {}),
    )
