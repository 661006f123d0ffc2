"""Janus-Pro (2501.17811): transformers' Llama, which draws with a head and codes of its own.

A code's embedding is an aligner, two layers, over a table of 8 numbers per code, computed once
while loading. The head has two layers. Pictures come from LlamaGen's VQ-16.

    <bos> "<|User|>: " prompt "\\n\\n<|Assistant|>:" <begin_of_image>
    unconditional: the same length, with padding tokens between the first and the last; Janus
    attends to them, so the unconditional row has the conditional one's mask

Sources: deepseek-ai/Janus, README.md (roles, padding in `generate`, guidance 5, temperature 1, no
filter, 24 x 24 codes); in janus/models: processing_vlm.py (tags), modeling_vlm.py (aligner, head),
vq_model.py (16384 codes of 8 numbers). The template's text: huggingface/transformers,
src/transformers/models/janus/convert_janus_weights_to_hf.py.
"""

from __future__ import annotations

from functools import partial
from typing import Any

import torch
from torch import nn
from transformers import JanusForConditionalGeneration, LlamaForCausalLM

from decoders.api import ImageModel, Sampling
from decoders.kinds import Amount, NotNegative, Size
from decoders.models.causal_lm import CausalLM, read_model, text_model
from decoders.models.loading.checkpoint import Checkpoint, open_checkpoint, require_side
from decoders.models.loading.weights import dtype_of
from decoders.models.pictures import JANUS, load_vq
from decoders.models.prompts import PromptEncoder, Template

TEMPLATE = Template(
    "<|User|>: {stripped}\n\n<|Assistant|>:",
    ("<｜begin▁of▁sentence｜>",),  # noqa: RUF001
    ("<begin_of_image>",),
    pad="<｜▁pad▁｜>",  # noqa: RUF001
)


@torch.no_grad()
def read_target(
    source: str, grid: int, prefix: int, dtype: torch.dtype, device: torch.device
) -> tuple[Any, Checkpoint]:
    """Reads the target, a `CausalLM`, of a folder or hub id. Raises DecoderError where it draws
    another grid."""
    opened = open_checkpoint(source, what="Janus-Pro target")
    whole = read_model(opened, dtype, device, JanusForConditionalGeneration)
    shape = whole.config.vq_config
    require_side(opened, "vq_config.num_patches", shape.num_patches, grid)
    language, head = text_model(whole, LlamaForCausalLM), whole.model.generation_head
    codes = torch.arange(shape.num_embeddings, device=language.device)
    embed = nn.Embedding.from_pretrained(whole.prepare_embeddings_for_image_generation(codes))
    return CausalLM(language, codes, grid, prefix, embed=embed, head=head), opened


def load(
    device: str = "cpu",
    dtype: str = "bfloat16",
    checkpoint: str = "deepseek-community/Janus-Pro-7B",
    grid: Size = 24,
    prefix: Size = 128,
    text: str | None = None,
    drafters: dict[str, str] | None = None,
    cfg: NotNegative = 5.0,
    top_k: Amount = 0,
) -> ImageModel:
    """Loads Janus-Pro; conf/model/janus_pro_7b.yaml explains the settings. Raises DecoderError."""
    torch_device, kind = torch.device(device), dtype_of(dtype)
    target, opened = read_target(checkpoint, grid, prefix, kind, torch_device)
    return ImageModel(
        name="janus_pro",
        target=target,
        text=PromptEncoder(opened, TEMPLATE, prefix, text, torch_device),
        tokenizer=load_vq(JANUS, opened, None, target.vocab_size, grid, torch_device)[0],
        sampling=Sampling(cfg=cfg, top_k=top_k),
        device=torch_device,
        dtype=kind,
        weights_sha256=opened.sha256(),
        drafters={
            key: partial(read_target, at, grid, prefix, kind, torch_device)
            for key, at in (drafters or {}).items()
        },
    )
