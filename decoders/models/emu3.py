"""Emu3-Gen (2409.18869): transformers' Emu3, whose vocabulary holds 32,768 visual tokens.

A picture of 720 x 720 pixels is 90 rows of 90 codes, each closed by an end-of-line token.

    <bos> prompt and PROMPT_ENDING <image start> "90*90" <image token>
    unconditional: the same with NEGATIVE_PROMPT in the place of prompt and PROMPT_ENDING

Sources: baaivision/Emu3, image_generation.py (prompts, guidance 3, top-k 2048, temperature 1,
`image_area`); in emu3/mllm: processing_emu3.py (order), tokenization_emu3.py (special tokens),
utils_emu3.py (a row end after every row, the last one too; what follows it is not drawn here);
emu3/tokenizer/configuration_emu3visionvq.py (32768 codes of 4 numbers, a factor of 8).
"""

from __future__ import annotations

import re
from typing import Any

import torch
from transformers import Emu3ForCausalLM, Emu3ForConditionalGeneration

from decoders.api import ImageModel, Sampling
from decoders.kinds import Amount, NotNegative, Size
from decoders.models.causal_lm import CausalLM, read_model, text_model
from decoders.models.loading.checkpoint import Checkpoint, open_checkpoint
from decoders.models.loading.weights import dtype_of
from decoders.models.pictures import PictureDecoder, VQTokenizer
from decoders.models.prompts import PromptEncoder, Template, code_tokens

VQ_PREFIXES = ("model.vqmodel.", "vqmodel.")  # where checkpoints keep it
CODE_NAME, ROW_END_TOKEN = re.compile(r"<\|visual token (\d+)\|>"), "<|extra_200|>"
PROMPT_ENDING = " masterpiece, film grained, best quality."
NEGATIVE_PROMPT = (
    "lowres, bad anatomy, bad hands, text, error, missing fingers, extra digit, fewer digits, "
    "cropped, worst quality, low quality, normal quality, jpeg artifacts, signature, watermark, "
    "username, blurry."
)


def tokenizer_of(whole: Any, opened: Checkpoint, grid: int) -> VQTokenizer:
    """Returns the VQ model inside transformers' model, in float32 as the checkpoint has it."""
    net, table = whole.model.vqmodel.float(), "quantize.embedding.weight"
    at = next(root for root in VQ_PREFIXES if f"{root}{table}" in opened.index)
    for name, values in net.state_dict().items():
        if values.is_floating_point():  # others are counters
            values.copy_(opened.read(f"{at}{name}"))
    codebook = net.get_parameter(table).detach()
    return VQTokenizer(PictureDecoder(net.decode, grid, codebook), row_end=True)


def load(
    device: str = "cpu",
    dtype: str = "bfloat16",
    checkpoint: str = "BAAI/Emu3-Gen-hf",
    grid: Size = 90,
    prefix: Size = 160,
    text: str | None = None,
    cfg: NotNegative = 3.0,
    top_k: Amount = 2048,
) -> ImageModel:
    """Loads Emu3-Gen; conf/model/emu3_gen.yaml explains the settings. Raises DecoderError."""
    torch_device, kind = torch.device(device), dtype_of(dtype)
    opened = open_checkpoint(checkpoint, what="Emu3-Gen target")
    tokens = code_tokens(opened, text, CODE_NAME, ROW_END_TOKEN)
    whole = read_model(opened, kind, torch_device, Emu3ForConditionalGeneration)
    language = text_model(whole, Emu3ForCausalLM)
    target: Any = CausalLM(language, tokens, grid, prefix, row_end=True)
    image = ("<|image start|>", f" {grid}*{grid}", "<|image token|>")
    text_of, start = f"{{prompt}}{PROMPT_ENDING}", ("<|extra_203|>",)
    template = Template(text_of, start, image, negative=NEGATIVE_PROMPT)
    return ImageModel(
        name="emu3_gen",
        target=target,
        text=PromptEncoder(opened, template, prefix, text, torch_device, control=tokens.tolist()),
        tokenizer=tokenizer_of(whole, opened, grid),
        sampling=Sampling(cfg=cfg, top_k=min(top_k, len(tokens))),
        device=torch_device,
        dtype=kind,
        weights_sha256=opened.sha256(),
    )
