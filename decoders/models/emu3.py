"""Emu3-Gen (2409.18869): transformers' Emu3, whose vocabulary holds 32,768 visual tokens.

A picture of 720 x 720 pixels is 90 rows of 90 codes, and every row is closed by an end-of-line
token: the grammar of Lumina-mGPT's row ends.

    <bos> prompt POSITIVE <image start> "90*90" <image token>
    unconditional: the same with NEGATIVE in the place of prompt and POSITIVE

Sources: baaivision/Emu3, image_generation.py (both prompts, guidance 3, top-k 2048, temperature 1;
the area of 720 x 720 is the model's `image_area`), emu3/mllm/processing_emu3.py (the prompts'
order), emu3/mllm/tokenization_emu3.py (names of the special tokens), emu3/mllm/utils_emu3.py (which
token may stand where: a row end after every row, the last one too),
emu3/tokenizer/configuration_emu3visionvq.py (32768 codes of 4 numbers, a factor of 8). What follows
the last row end (end of frame, image and text) is not drawn here.
"""

from __future__ import annotations

import re
from typing import Any

import torch
from transformers import Emu3ForCausalLM, Emu3ForConditionalGeneration

from decoders.api import ImageModel, Sampling
from decoders.models.causal_lm import CausalLM, text_model
from decoders.models.checkpoint import open_checkpoint
from decoders.models.pretrained import read_model
from decoders.models.text.prompts import PromptEncoder, Template, read_vocabulary
from decoders.models.vq.library_vq import library_vq
from decoders.models.weights import dtype_of

CODE, ROW_END = re.compile(r"<\|visual token (\d+)\|>"), "<|extra_200|>"
POSITIVE = " masterpiece, film grained, best quality."
NEGATIVE = (
    "lowres, bad anatomy, bad hands, text, error, missing fingers, extra digit, fewer digits, "
    "cropped, worst quality, low quality, normal quality, jpeg artifacts, signature, watermark, "
    "username, blurry."
)


def template_of(grid: int) -> Template:
    """For square images of `grid` codes a side."""
    return Template(
        f"{{prompt}}{POSITIVE}",
        ("<|extra_203|>",),
        ("<|image start|>", f" {grid}*{grid}", "<|image token|>"),
        negative=NEGATIVE,
    )


def load(
    name: str = "emu3_gen",
    device: str = "cpu",
    dtype: str = "bfloat16",
    checkpoint: str = "BAAI/Emu3-Gen-hf",
    grid: int = 90,
    prefix: int = 160,
    text: str | None = None,
    cfg: float = 3.0,
    top_k: int = 2048,
) -> ImageModel:
    """checkpoint: folder or hub id in transformers' layout. grid: image side in codes, which the
    prompt names; 90 rows of 90 codes and a row end are 720 pixels. prefix: tokens of the longest
    prompt, its template included. text: folder, file or hub id of the text tokenizer; None: next to
    the checkpoint. cfg, top_k: the usual sampling. Raises DecoderError."""
    place, kind = torch.device(device), dtype_of(dtype)
    opened = open_checkpoint(checkpoint, what="Emu3-Gen target")
    tokens = read_vocabulary(opened, text).code_tokens(CODE, ROW_END)
    whole = read_model(opened, kind, place, Emu3ForConditionalGeneration)
    words, template = text_model(whole, Emu3ForCausalLM), template_of(grid)
    target: Any = CausalLM(words, tokens, grid, prefix, row_end=True)
    return ImageModel(
        name=name,
        target=target,
        text=PromptEncoder(opened, template, prefix, text, place, control=tokens.tolist()),
        tokenizer=library_vq(whole, opened, grid, rows=True),
        sampling=Sampling(cfg=cfg, top_k=min(top_k, len(tokens))),
        device=place,
        dtype=kind,
        weights_sha256=opened.sha256(),
    )
