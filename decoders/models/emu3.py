"""Emu3-Gen (2409.18869): a Llama decoder whose vocabulary holds 32,768 visual tokens.

A picture of 720 x 720 pixels is 90 rows of 90 codes, and every row is closed by an end-of-line
token: the grammar of Lumina-mGPT's row ends, so the same structural codes serve it. Of the head
only the rows of visual tokens and of the row end are kept. The 32 query heads share 8 heads of
keys and values (2305.13245).

Sources: baaivision/Emu3, image_generation.py (guidance 3, top-k 2048, temperature 1; the area of
720 x 720 is the model's `image_area`), emu3/mllm/utils_emu3.py (which token may stand where: a row
end after every row, the last one too), emu3/mllm/configuration_emu3.py (sizes),
emu3/tokenizer/configuration_emu3visionvq.py (32768 codes of 4 numbers, a factor of 8). What follows
the last row end (end of frame, image and text) is not drawn here.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from decoders.api import DecoderError, ImageModel, Sampling
from decoders.models.chameleon import head_rows
from decoders.models.chameleon_layout import layer_sources
from decoders.models.checkpoint import Checkpoint, Source, fill, open_checkpoint, some
from decoders.models.head import pad_head
from decoders.models.hub_shape import hub_shape, text_config
from decoders.models.layouts import harmless
from decoders.models.shape import TransformerConfig
from decoders.models.text.special import PromptEncoder, emu3_template, tokenizer_file
from decoders.models.transformer import Transformer, cast, empty
from decoders.models.vq.chameleon_vq import ChameleonTokenizer
from decoders.models.vq.emu3_vq import read_emu3_vq, root_of
from decoders.models.vq.tokenizer import NoTokenizer
from decoders.models.weights import dtype_of, read_json

FAMILY = "Emu3-Gen"
ROW_END = "<|extra_200|>"
CODE = re.compile(r"<\|visual token (\d+)\|>")
LAYOUTS = {  # where the words are -> where the head is
    "model.text_model.": "lm_head.weight",
    "text_model.model.": "text_model.lm_head.weight",
    "model.": "lm_head.weight",
}
# Of transformers' Emu3TextConfig: the config.json of Emu3-Gen-hf leaves out what is equal to it.
USUAL = {
    "hidden_size": 4096,
    "intermediate_size": 14336,
    "num_attention_heads": 32,
    "num_hidden_layers": 32,
    "num_key_value_heads": 8,
    "vocab_size": 184622,
}
VQ_FILES = ("vq/model.safetensors",)
logger = logging.getLogger(__name__)


def code_tokens(names: Mapping[str, int], origin: Any) -> Tensor:
    """[V] int64: the token of every code by the number in its name; the row end's is the last.
    Raises DecoderError where the numbers are not 0..n - 1 or there is no row end."""
    matches = ((CODE.fullmatch(name), token) for name, token in names.items())
    tokens = {int(match[1]): token for match, token in matches if match}
    if not tokens or sorted(tokens) != list(range(len(tokens))) or ROW_END not in names:
        raise DecoderError(
            f"the vocabulary of {origin} must name its codes <|visual token 000000|> from 0 on and "
            f"the row end {ROW_END}; found {len(tokens)} codes. Is it Emu3's?"
        )
    return torch.tensor([*(tokens[code] for code in range(len(tokens))), names[ROW_END]])


def vocabulary(opened: Checkpoint, text: str | None) -> Mapping[str, int]:
    """Names of the special tokens: config.json's `vocabulary_map`, else the tokenizer's file."""
    names = opened.config.get("vocabulary_map")
    if names:
        return dict(names)
    path = tokenizer_file(opened, text)
    try:
        return {t["content"]: int(t["id"]) for t in read_json(path).get("added_tokens", [])}
    except (KeyError, TypeError, ValueError) as error:
        raise DecoderError(f"{path} is no tokenizer file: added_tokens must be named") from error


def layout_of(opened: Checkpoint) -> tuple[str, str]:
    """Where the words and the head are. Raises DecoderError where the checkpoint is not Emu3's."""
    for words, head in LAYOUTS.items():
        if f"{words}embed_tokens.weight" in opened.index:
            return words, head
    expected = ", ".join(f"{words}embed_tokens.weight" for words in LAYOUTS)
    raise DecoderError(
        f"{opened.path} is no {FAMILY} checkpoint: expected one of {expected}; found "
        f"{some(opened.keys())}"
    )


def config_of(opened: Checkpoint, codes: int, grid: int, prefix: int) -> TransformerConfig:
    """The target's shape from config.json; codes: V, the row end included."""
    given = text_config(opened, FAMILY, ("text_config",), USUAL)
    return hub_shape(
        opened,
        given,
        wrong={},
        family=FAMILY,
        places=9216,
        rope_base=1e6,
        vocab=codes,
        tokens=int(given["vocab_size"]),
        grid=grid,
        prefix=prefix,
        row_end=True,
    )


def load_target(
    opened: Checkpoint,
    tokens: Tensor,
    grid: int,
    prefix: int,
    dtype: torch.dtype,
    device: torch.device,
) -> Transformer:
    """The target of an opened checkpoint; tokens [V] as from `code_tokens`."""
    cfg = config_of(opened, len(tokens), grid, prefix)
    words, head = layout_of(opened)
    module: Transformer = empty(Transformer, cfg)
    module.code_tokens = tokens
    out: dict[str, Source] = {
        "tok_embeddings.weight": Source((f"{words}embed_tokens.weight",)),
        "norm.weight": Source((f"{words}norm.weight",)),
        "output.weight": Source((head,), lambda rows: head_rows(rows, tokens)),
    }
    for n in range(cfg.layers):
        out |= layer_sources(f"layers.{n}.", f"{words}layers.{n}.", cfg)
    pictures = root_of(opened)

    def unused(name: str) -> bool:
        return harmless(name) or (bool(pictures) and name.startswith(str(pictures)))

    fill(module, out, opened, dtype, device, unused)
    pad_head(module)
    return cast(module, device, dtype)


def load(
    name: str = "emu3_gen",
    device: str = "cpu",
    dtype: str = "bfloat16",
    checkpoint: str = "BAAI/Emu3-Gen-hf",
    grid: int = 90,
    prefix: int = 160,
    tokenizer: str | None = None,
    text: str | None = None,
    drafters: dict[str, str] | None = None,
    cfg: float = 3.0,
    top_k: int = 2048,
) -> ImageModel:
    """Emu3-Gen: at grid 90, 90 rows of 90 codes and a row end, 720 pixels.

    checkpoint: folder or hub id, in transformers' or BAAI's layout. grid: image side in codes; the
    prompt names it. prefix: tokens of the longest prompt, its template included. tokenizer: folder,
    file or hub id of the VQ model in transformers' layout; None: the checkpoint's own, else no
    pictures. text: tokenizer.json, or a folder or hub id with it; None: beside the checkpoint.
    drafters: names for drafter checkpoints. cfg, top_k: the usual sampling.
    """
    place, kind = torch.device(device), dtype_of(dtype)
    opened = open_checkpoint(checkpoint, what=f"{FAMILY} target")
    layout_of(opened)
    tokens = code_tokens(vocabulary(opened, text), opened.path)
    pictures, digests = load_tokenizer(opened, tokenizer, grid, place)
    if isinstance(pictures, ChameleonTokenizer) and len(pictures.codebook) != len(tokens):
        raise DecoderError(
            f"the vocabulary of {opened.path} names {len(tokens) - 1} codes, the VQ model has "
            f"{len(pictures.codebook) - 1}; do they belong together?"
        )
    return ImageModel(
        name=name,
        target=load_target(opened, tokens, grid, prefix, kind, place),
        text=PromptEncoder(opened, emu3_template(grid), prefix, text, place),
        tokenizer=pictures,
        sampling=Sampling(cfg=cfg, top_k=min(top_k, len(tokens))),
        device=place,
        dtype=kind,
        weights_sha256=opened.sha256() | digests,
        drafters=dict(drafters or {}),
    )


def load_tokenizer(
    target: Checkpoint, source: str | None, grid: int, device: torch.device
) -> tuple[ChameleonTokenizer | NoTokenizer, dict[str, str]]:
    """The VQ decoder in float32 and the SHA-256 of its files, where they are not the target's."""
    if source is None and root_of(target) is None:
        logger.warning(
            "no VQ model in %s: codes will be recorded, no pictures made; set model.tokenizer to a "
            "checkpoint of %s in transformers' layout", target.path, FAMILY,
        )  # fmt: skip
        return NoTokenizer(str(target.folder), VQ_FILES), {}
    opened = target if source is None else open_checkpoint(source, what="Emu3 VQ model")
    pictures = ChameleonTokenizer(read_emu3_vq(opened, grid).to(device), True)
    return pictures, {} if opened is target else opened.sha256()
