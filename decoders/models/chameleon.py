"""Anole-7B and Lumina-mGPT-7B (Chameleon, 2405.09818) from transformers' layout into `Transformer`.

One model with text and image tokens: normalised queries and keys, 1-D rotation, and of the head
only the rows of image tokens (codes) are kept, since nothing else is drawn here. Anole makes 32 x
32 codes; Lumina-mGPT 48 x 48 at 768 pixels, with a row end after every row.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from decoders.api import DecoderError, ImageModel, Sampling
from decoders.models.chameleon_layout import layer_sources
from decoders.models.checkpoint import Checkpoint, Source, fill, open_checkpoint
from decoders.models.head import pad_head
from decoders.models.hub_shape import hub_shape, text_config
from decoders.models.layouts import harmless
from decoders.models.shape import TransformerConfig
from decoders.models.text.chameleon import (
    ROW_END,
    ChameleonEncoder,
    Vocabulary,
    anole_template,
    lumina_template,
    read_vocabulary,
)
from decoders.models.transformer import Transformer, cast, empty
from decoders.models.vq.chameleon_vq import HUB, load_tokenizer
from decoders.models.vq.tokenizer import NoTokenizer
from decoders.models.weights import dtype_of


def code_tokens(vocabulary: Vocabulary, row_end: bool) -> Tensor:
    """[V] int64: the token of every code; the row end's is the last."""
    tokens = vocabulary.code_tokens()
    return torch.cat([tokens, torch.tensor([vocabulary.id(ROW_END)])]) if row_end else tokens


def config_of(
    opened: Checkpoint, codes: int, grid: int, prefix: int, row_end: bool
) -> TransformerConfig:
    """The target's shape from config.json; codes: V. Raises DecoderError where the checkpoint is
    not Chameleon's, or a variant of it that this module does not compute."""
    given = text_config(opened, "Chameleon", ())
    wrong = {
        "swin_norm=true (Chameleon-34B): norms after attention and feed-forward": given.get(
            "swin_norm"
        ),
    }
    return hub_shape(
        opened,
        given,
        wrong=wrong,
        family="Anole-7B or Lumina-mGPT-7B",
        vocab=codes,
        tokens=int(given["vocab_size"]),
        grid=grid,
        prefix=prefix,
        qk_norm=True,
        row_end=row_end,
    )


def sources(cfg: TransformerConfig, tokens: Tensor, tied: bool = False) -> dict[str, Source]:
    """Every parameter of the target; tokens [V] are the rows of the head that are kept. tied: the
    head is the embedding."""
    embedding = "model.embed_tokens.weight"
    out = {
        "tok_embeddings.weight": Source((embedding,)),
        "norm.weight": Source(("model.norm.weight",)),
        "output.weight": Source(
            (embedding if tied else "lm_head.weight",), lambda head: head_rows(head, tokens)
        ),
    }
    for n in range(cfg.layers):
        out |= layer_sources(f"layers.{n}.", f"model.layers.{n}.", cfg)
    return out


def head_rows(head: Tensor, tokens: Tensor) -> Tensor:
    """The head's rows of these tokens [V, D]. Raises DecoderError where it has fewer."""
    if head.ndim != 2 or len(head) <= int(tokens.max()):
        raise DecoderError(
            f"the head is {list(head.shape)}, a code has token {int(tokens.max())}; do the "
            "vocabulary and the weights belong together?"
        )
    return head[tokens]


def load_target(
    opened: Checkpoint,
    cfg: TransformerConfig,
    tokens: Tensor,
    dtype: torch.dtype,
    device: torch.device,
) -> Transformer:
    """The target of an opened checkpoint; tokens [V] as from `code_tokens`."""
    if int(tokens.max()) >= cfg.tokens:
        raise DecoderError(
            f"{opened.path}: the vocabulary names token {int(tokens.max())}, config.json has "
            f"vocab_size {cfg.tokens}; do they belong together?"
        )
    module: Transformer = empty(Transformer, cfg)
    module.code_tokens = tokens
    tied = bool(opened.config.get("tie_word_embeddings")) and "lm_head.weight" not in opened.index

    def unused(name: str) -> bool:
        return name.startswith(HUB) or harmless(name)

    fill(module, sources(cfg, tokens, tied), opened, dtype, device, unused)
    pad_head(module)
    return cast(module, device, dtype)


def load_anole(
    name: str = "anole_7b",
    device: str = "cpu",
    dtype: str = "bfloat16",
    checkpoint: str = "leloy/Anole-7b-v0.1-hf",
    grid: int = 32,
    prefix: int = 128,
    tokenizer: str | None = None,
    text: str | None = None,
    drafters: dict[str, str] | None = None,
    cfg: float = 3.0,
    top_k: int = 2000,
) -> ImageModel:
    """Anole-7B: target, VQGAN, prompts as tokens; 32 x 32 codes are 512 pixels.

    checkpoint: folder or hub id in transformers' layout. grid: image side in codes. prefix: tokens
    of the longest prompt, its template included. tokenizer: folder, file or hub id of the VQGAN;
    None: in or beside the checkpoint, else no pictures. text: the same of the text tokenizer; None:
    beside the checkpoint. drafters: names for drafter checkpoints. cfg, top_k: the usual sampling.
    """
    opened = open_checkpoint(checkpoint, what="Anole target")
    vocabulary = read_vocabulary(opened, text)
    template = anole_template(vocabulary)
    encoder = ChameleonEncoder(opened, vocabulary, template, prefix, text, device)
    return _assemble(
        opened,
        encoder,
        grid,
        False,
        tokenizer,
        dtype_of(dtype),
        name=name,
        sampling=Sampling(cfg=cfg, top_k=top_k),
        drafters=dict(drafters or {}),
    )


def load_lumina(
    name: str = "lumina_mgpt_7b_768",
    device: str = "cpu",
    dtype: str = "bfloat16",
    checkpoint: str = "Alpha-VLLM/Lumina-mGPT-7B-768",
    grid: int = 48,
    prefix: int = 128,
    tokenizer: str | None = None,
    text: str | None = None,
    drafters: dict[str, str] | None = None,
    cfg: float = 3.0,
    top_k: int = 2000,
) -> ImageModel:
    """Lumina-mGPT-7B: at grid 48, 48 rows of 48 codes and a row end, 768 pixels. Arguments as of
    `load_anole`."""
    opened = open_checkpoint(checkpoint, what="Lumina-mGPT target")
    vocabulary = read_vocabulary(opened, text)
    template = lumina_template(vocabulary, grid)
    encoder = ChameleonEncoder(opened, vocabulary, template, prefix, text, device)
    return _assemble(
        opened,
        encoder,
        grid,
        True,
        tokenizer,
        dtype_of(dtype),
        name=name,
        sampling=Sampling(cfg=cfg, top_k=top_k),
        drafters=dict(drafters or {}),
    )


def _assemble(
    opened: Checkpoint,
    encoder: ChameleonEncoder,
    grid: int,
    row_end: bool,
    tokenizer: str | None,
    dtype: torch.dtype,
    **rest: Any,
) -> ImageModel:
    """What the two models have in common; rest: fields of `ImageModel` as they are."""
    tokens = code_tokens(encoder.vocabulary, row_end)
    shape = config_of(opened, len(tokens), grid, encoder.length, row_end)
    pictures, digests = load_tokenizer(opened, tokenizer, grid, row_end, encoder.device)
    if not isinstance(pictures, NoTokenizer) and len(pictures.codebook) != len(tokens):
        raise DecoderError(
            f"the vocabulary of {opened.path} names {len(tokens) - row_end} codes, the VQGAN has "
            f"{len(pictures.codebook) - row_end}; do they belong together?"
        )
    return ImageModel(
        target=load_target(opened, shape, tokens, dtype, encoder.device),
        text=encoder,
        tokenizer=pictures,
        device=encoder.device,
        dtype=dtype,
        weights_sha256=opened.sha256() | digests,
        **rest,
    )
