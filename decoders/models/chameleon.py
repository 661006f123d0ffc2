"""Chameleon models that draw (2405.09818): Anole and Lumina-mGPT.

One model with text and image tokens, a 1-D rotation and normalised queries and keys. Of its head
only the rows of codes are kept, since nothing else is drawn here. Anole-7B makes 32 x 32 codes;
Lumina-mGPT-7B 48 x 48 at 768 pixels, with a row end after every row. Prompts are those of the
released decoding code; a name in angle brackets is one token.

    Anole   conditional    <s> prompt <sep> <boi>            unconditional  <s> <boi>
    Lumina  conditional    <s> "Generate an image of 768x768 according to the following
                           prompt:\\n" prompt <sep> <boi> <height> <width>
            unconditional  <boi> <height> <width>

<boi> is ``<racm3:break>``, <sep> ``<reserved08706>``; Lumina's size tokens ``<reserved088NN>``
count blocks of 32 pixels. Sources. Anole: jadohu/LANTERN, models/ea_model_anole.py (tokens 0 ...
8710 8197, without the prompt 0 8197); models/base_models/lumina_mgpt/item_processor.py (names of
Lumina's image, size and row-end tokens). Lumina-mGPT: Alpha-VLLM/Lumina-mGPT,
lumina_mgpt/generate_examples/generate.py (the prompt's text), lumina_mgpt/inference_solver.py (the
unconditional row starts at <boi>; where row ends stand).
"""

from __future__ import annotations

import re
from collections.abc import Callable
from functools import partial
from typing import Any

import torch

from decoders.api import DecoderError, ImageModel, Sampling
from decoders.kinds import Amount, NotNegative, Positive, Size, validate, validate_entries
from decoders.models.loading.checkpoint import Checkpoint, open_checkpoint, require_side, some
from decoders.models.loading.layouts import Layout, layout_of, load_target
from decoders.models.loading.weights import dtype_of
from decoders.models.nets.shape import TransformerConfig
from decoders.models.pictures import CHAMELEON, load_vq
from decoders.models.prompts import TOKENIZER_FILE, PromptEncoder, Template, code_tokens

LAYOUT = Layout("model.", "model.embed_tokens.weight", "lm_head.weight", ("model.vqmodel.",))
CODE_NAME = re.compile(r"IMGIMG([A-J]+)Z")  # a code's name: the number in letters, A for 0
NEEDED_KEYS = (
    *("hidden_size", "intermediate_size", "vocab_size"),
    *("num_attention_heads", "num_hidden_layers"),
)
TOKENIZER_FILES = (
    TOKENIZER_FILE,
    "text_tokenizer.json",
    "tokenizer/text_tokenizer.json",
    "chameleon/tokenizer/text_tokenizer.json",
    "original_tokenizers/text_tokenizer.json",
)
START, SEPARATOR, BOI = "<s>", "<reserved08706>", "<racm3:break>"
FIRST_SIZE_TOKEN = 8800  # <reserved08800 + n>: n blocks of 32 pixels
PIXELS_PER_CODE, PIXELS_PER_BLOCK = 16, 32  # pixels of a code, pixels that a size token counts


ANOLE = Template("{prompt}", (START,), (SEPARATOR, BOI), uncond=(START, BOI))


def lumina_template(grid: int) -> Template:
    """Makes the template for images of `grid` codes a side, which must be whole blocks of 32
    pixels."""
    side = grid * PIXELS_PER_CODE
    if side % PIXELS_PER_BLOCK:
        raise DecoderError(f"model.grid must be even for Lumina-mGPT, found {grid}")
    size = f"<reserved{FIRST_SIZE_TOKEN + side // PIXELS_PER_BLOCK:05d}>"
    image = (BOI, size, size)
    text = f"Generate an image of {side}x{side} according to the following prompt:\n{{prompt}}"
    return Template(text, (START,), (SEPARATOR, *image), uncond=image)


def config_of(
    opened: Checkpoint, codes: int, grid: int, prefix: int, row_end: bool
) -> TransformerConfig:
    """Reads the target's shape from config.json; codes: V, the row end included. Raises
    DecoderError where the checkpoint is another model's, or a variant that is not computed here."""
    config = opened.config
    if missing := [name for name in NEEDED_KEYS if name not in config]:
        raise DecoderError(
            f"{opened.path} is no Chameleon checkpoint: its config.json must say {some(missing)}"
        )
    heads, width = config["num_attention_heads"], config["hidden_size"]
    rope, scaling = config.get("rope_parameters") or {}, config.get("rope_scaling") or {}
    kinds = {rope.get("rope_type"), scaling.get("rope_type"), scaling.get("type")}
    refused = {
        "swin_norm=true (Chameleon-34B): norms after attention and feed-forward": config.get(
            "swin_norm"
        ),
        "heads that share keys and values": config.get("num_key_value_heads", heads) != heads,
        "a scaled rotation": kinds - {None, "default"},
        "another activation than silu": config.get("hidden_act", "silu") != "silu",
        "biases in attention": config.get("attention_bias"),
        "heads of another width than hidden_size / num_attention_heads": (
            (config.get("head_dim") or 0) * heads not in (0, width)
        ),
    }
    if reasons := [name for name, there in refused.items() if there]:
        raise DecoderError(
            f"{opened.path}: config.json has {'; '.join(reasons)}, which is not computed here; "
            "Anole and Lumina-mGPT have none of it"
        )
    if not row_end and (vq := config.get("vq_config")) is not None:
        # Anole's side. Lumina's config.json has Chameleon's, though its images are larger ones.
        where = f"{opened.path}: config.json: vq_config"
        entries = {"resolution": Size, "channel_multiplier": list[Amount]}
        shape = validate_entries(validate(where, vq, dict[str, Any]), entries, where)
        halvings = len(shape.get("channel_multiplier", (1, 1, 2, 2, 4))) - 1
        require_side(opened, "vq_config", shape.get("resolution", 512) >> halvings, grid)
    base = rope.get("rope_theta", config.get("rope_theta", 10000.0))
    result = TransformerConfig(
        vocab=codes,
        tokens=int(config["vocab_size"]),
        grid=grid,
        prefix=prefix,
        width=int(width),
        layers=int(config["num_hidden_layers"]),
        heads=int(heads),
        ffn=int(config["intermediate_size"]),
        norm_eps=float(config.get("rms_norm_eps", 1e-5)),
        conditioning="tokens",
        positions="line",
        prefix_rope="identity",
        rope_base=validate(f"{opened.path}: config.json: rope_theta", base, Positive),
        row_end=row_end,
        qk_norm=True,
    )
    positions = int(config.get("max_position_embeddings", 4096))
    if prefix + result.length > positions:
        raise DecoderError(
            f"a prompt of {prefix} and an image of {result.length} tokens are more than the "
            f"model's {positions} positions; lower model.prefix or model.grid"
        )
    return result


def load_model(
    template_of: Callable[[int], Template],
    row_end: str | None,
    checkpoint: str,
    grid: Size,
    device: str = "cpu",
    dtype: str = "bfloat16",
    prefix: Size = 128,
    tokenizer: str | None = None,
    text: str | None = None,
    drafters: dict[str, str] | None = None,
    cfg: NotNegative = 3.0,
    top_k: Amount = 2000,
) -> ImageModel:
    """Loads a model. template_of: of prompts, by the grid. row_end: the token that closes a row.
    conf/model/lumina_mgpt_7b_768.yaml explains the others. Raises DecoderError."""
    torch_device, kind = torch.device(device), dtype_of(dtype)
    opened = open_checkpoint(checkpoint, what="Chameleon target")
    layout, template = layout_of(opened, "Chameleon", [LAYOUT]), template_of(grid)
    tokens = code_tokens(opened, text, CODE_NAME, row_end, TOKENIZER_FILES)
    shape = config_of(opened, len(tokens), grid, prefix, row_end is not None)
    pictures, digests = load_vq(
        CHAMELEON, opened, tokenizer, len(tokens), grid, torch_device, shape.row_end
    )
    return ImageModel(
        name="chameleon",
        target=load_target(opened, layout, shape, tokens, kind, torch_device),
        text=PromptEncoder(
            opened, template, prefix, text, torch_device, TOKENIZER_FILES, tokens.tolist()
        ),
        tokenizer=pictures,
        sampling=Sampling(cfg=cfg, top_k=min(top_k, len(tokens))),
        device=torch_device,
        dtype=kind,
        weights_sha256=opened.sha256() | digests,
        drafters=dict(drafters or {}),
    )


load_anole = partial(load_model, lambda grid: ANOLE, None)
load_lumina = partial(load_model, lumina_template, "<reserved08799>")
