"""SimpleAR (2504.11455): Qwen2.5 with the 64,000 codes of the Cosmos tokenizer behind its tokens.

    conditional    <|t2i|> "A highly realistic image of " prompt <|soi|>
    unconditional  <|t2i|> NEGATIVE_PROMPT <|soi|>

Sources: wdrink/SimpleAR, generate.py (both prompts, guidance 6, temperature 1, 64 x 64 codes are
1024 pixels; code c is token len(tokenizer) + c), simpar/train/train.py (151,672 tokens before the
codes; 215,672 rows in all). The release draws from all tokens; here nothing but codes is drawn.

Pictures come from the Cosmos tokenizer (2501.03575; DV8x16x16), 16 pixels per code, a TorchScript
program (`decoder.jit`) in its own precision. Its codes are those of finite scalar quantization
(2309.15505): a code's number, in the bases 8, 8, 8, 5, 5, 5, is its point on a grid of six axes.
Source: simpar/model/tokenizer/cosmos_tokenizer: modules/quantizers.py (the order of the axes,
points in [-1, 1]), video_lib.py (levels; indices [B, 1, h, w] in, frames [B, 3, 1, H, W] in [-1, 1]
out).
"""

from __future__ import annotations

import warnings
from functools import partial
from math import prod
from typing import Any

import torch
from torch import Tensor
from transformers import Qwen2ForCausalLM

from decoders.api import DecoderError, ImageModel, Sampling
from decoders.kinds import Amount, NotNegative, Size
from decoders.models.causal_lm import CausalLM, read_model
from decoders.models.loading.checkpoint import Checkpoint, open_checkpoint
from decoders.models.loading.weights import dtype_of, locate, sha256_of
from decoders.models.pictures import NoTokenizer, PictureDecoder, VQTokenizer
from decoders.models.prompts import PromptEncoder, Template

AXIS_LEVELS = (8, 8, 8, 5, 5, 5)
DECODER_FILE = "decoder.jit"
NEGATIVE_PROMPT = (
    "An image of aerial view, overexposed, low quality, deformation, a poor composition, "
    "bad hands, bad teeth, bad eyes, bad limbs, distortion"
)
TEMPLATE = Template(
    "A highly realistic image of {prompt}", ("<|t2i|>",), ("<|soi|>",), negative=NEGATIVE_PROMPT
)


def read_target(
    source: str, codes: int, grid: int, prefix: int, dtype: torch.dtype, device: torch.device
) -> tuple[Any, Checkpoint]:
    """Reads the target, a `CausalLM`, of a folder or hub id. The codes are its last tokens."""
    opened = open_checkpoint(source, what="SimpleAR target")
    model = read_model(opened, dtype, device, Qwen2ForCausalLM)
    tokens = range(model.config.vocab_size)[-codes:]
    return CausalLM(model, tokens, grid, prefix), opened


def load(
    device: str = "cpu",
    dtype: str = "bfloat16",
    checkpoint: str = "Daniel0724/SimpleAR-0.5B-RL",
    grid: Size = 64,
    prefix: Size = 160,
    tokenizer: str | None = None,
    text: str | None = None,
    drafters: dict[str, str] | None = None,
    cfg: NotNegative = 6.0,
    top_k: Amount = 0,
) -> ImageModel:
    """Loads SimpleAR; conf/model/simplear_05b.yaml explains the settings. Raises DecoderError."""
    torch_device = torch.device(device)
    pictures, digests = load_cosmos(tokenizer, grid, torch_device)
    sizes = len(pictures.codebook), grid, prefix, dtype_of(dtype), torch_device
    target, opened = read_target(checkpoint, *sizes)
    smaller = {key: partial(read_target, at, *sizes) for key, at in (drafters or {}).items()}
    return ImageModel(
        name="simplear",
        target=target,
        text=PromptEncoder(opened, TEMPLATE, prefix, text, torch_device),
        tokenizer=pictures,
        sampling=Sampling(cfg=cfg, top_k=top_k),
        device=torch_device,
        dtype=dtype_of(dtype),
        weights_sha256=opened.sha256() | digests,
        drafters=smaller,
    )


def codebook() -> Tensor:
    """Computes [64000, 6] float32, points of the grid in [-1, 1]; looked up by plain L2."""
    levels = torch.tensor(AXIS_LEVELS)
    bases, half = levels.cumprod(0) // levels, levels // 2
    return (torch.arange(prod(AXIS_LEVELS))[:, None] // bases % levels - half) / half


def load_cosmos(
    source: str | None, grid: int, device: torch.device
) -> tuple[VQTokenizer | NoTokenizer, dict[str, str]]:
    """Loads the tokenizer, and the SHA-256 of its file. source: a folder or hub id with
    `decoder.jit`, or that file; None: codes and neighbours, no pictures. Raises DecoderError."""
    if source is None:
        why = f"no {DECODER_FILE} is named; set model.tokenizer to a folder with it, or its hub id"
        return NoTokenizer(why, codebook().to(device)), {}
    folder = locate(source, (DECODER_FILE,), "Cosmos tokenizer")
    path = folder / DECODER_FILE if folder.is_dir() else folder
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # that TorchScript is old
            net = torch.jit.load(str(path), map_location=device).eval()
    except (RuntimeError, ValueError, OSError) as error:
        reason = (str(error).strip() or type(error).__name__).splitlines()[0]
        raise DecoderError(
            f"Cosmos tokenizer: {path} cannot be read ({reason}); expected the TorchScript program "
            f"{DECODER_FILE} of nvidia/Cosmos-1.0-Tokenizer-DV8x16x16"
        ) from error

    def pictures(codes: Tensor) -> Tensor:
        frames: Tensor = net(codes[:, None])  # [B, 1, h, w] -> [B, 3, 1, H, W]
        return frames[:, :, 0]

    vq = PictureDecoder(pictures, grid, codebook().to(device))
    return VQTokenizer(vq), {path.name: sha256_of(path)}
