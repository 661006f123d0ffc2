"""SimpleAR (2504.11455): Qwen2.5 with the 64,000 codes of the Cosmos tokenizer behind its words.

    conditional    <|t2i|> "A highly realistic image of " prompt <|soi|>
    unconditional  <|t2i|> NEGATIVE <|soi|>

Sources: wdrink/SimpleAR, generate.py (both prompts, guidance 6, temperature 1, 64 x 64 codes are
1024 pixels; code c is token len(tokenizer) + c) and simpar/train/train.py (151,665 tokens of
Qwen2.5 and seven of its own stand before the codes; 215,672 rows in all). The release draws from
all tokens, and what is no code becomes one at the end; here nothing but codes is drawn.
"""

from __future__ import annotations

from functools import partial
from typing import Any

import torch
from transformers import Qwen2ForCausalLM

from decoders.api import ImageModel, Sampling
from decoders.models.causal_lm import CausalLM
from decoders.models.checkpoint import Checkpoint, open_checkpoint
from decoders.models.pretrained import read_model
from decoders.models.text.prompts import PromptEncoder, Template
from decoders.models.vq.cosmos_vq import load_cosmos
from decoders.models.weights import dtype_of

NEGATIVE = (
    "An image of aerial view, overexposed, low quality, deformation, a poor composition, "
    "bad hands, bad teeth, bad eyes, bad limbs, distortion"
)
TEMPLATE = Template(
    "A highly realistic image of {prompt}", ("<|t2i|>",), ("<|soi|>",), negative=NEGATIVE
)


def read_target(
    source: str, codes: int, grid: int, prefix: int, dtype: torch.dtype, device: torch.device
) -> tuple[Any, Checkpoint]:
    """The target, a `CausalLM`, of a folder or hub id. The codes are its last tokens."""
    opened = open_checkpoint(source, what="SimpleAR target")
    model = read_model(opened, dtype, device, Qwen2ForCausalLM)
    tokens = range(model.config.vocab_size)[-codes:]
    return CausalLM(model, tokens, grid, prefix), opened


def load(
    name: str = "simplear_05b",
    device: str = "cpu",
    dtype: str = "bfloat16",
    checkpoint: str = "Daniel0724/SimpleAR-0.5B-RL",
    grid: int = 64,
    prefix: int = 160,
    tokenizer: str | None = None,
    text: str | None = None,
    drafters: dict[str, str] | None = None,
    cfg: float = 6.0,
    top_k: int = 0,
) -> ImageModel:
    """checkpoint: folder or hub id. grid: codes per side. prefix: tokens of the longest prompt, its
    template included. tokenizer: see `load_cosmos`. text: the text tokenizer; None: next to the
    checkpoint. drafters: names of smaller models of the family. cfg, top_k: the usual sampling.
    Raises DecoderError."""
    place = torch.device(device)
    pictures, digests = load_cosmos(tokenizer, grid, place)
    sizes = len(pictures.codebook), grid, prefix, dtype_of(dtype), place
    target, opened = read_target(checkpoint, *sizes)
    smaller = {key: partial(read_target, at, *sizes) for key, at in (drafters or {}).items()}
    return ImageModel(
        name=name,
        target=target,
        text=PromptEncoder(opened, TEMPLATE, prefix, text, place),
        tokenizer=pictures,
        sampling=Sampling(cfg=cfg, top_k=top_k),
        device=place,
        dtype=dtype_of(dtype),
        weights_sha256=opened.sha256() | digests,
        drafters=smaller,
    )
