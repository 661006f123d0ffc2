"""Anole-7B and Lumina-mGPT-7B (Chameleon, 2405.09818) from transformers' layout into `Transformer`.

One model with text and image tokens and normalised queries and keys. Anole makes 32 x 32 codes;
Lumina-mGPT 48 x 48 at 768 pixels, with a row end after every row. Prompts, as in the released
decoding code (a name stands for its token):

    Anole   conditional    <s> prompt <sep> <boi>            unconditional  <s> <boi>
    Lumina  conditional    <s> "Generate an image of 768x768 according to the following
                           prompt:\\n" prompt <sep> <boi> <height> <width>
            unconditional  <boi> <height> <width>

<boi> is ``<racm3:break>``, <sep> ``<reserved08706>``; Lumina's size tokens ``<reserved088NN>``
count blocks of 32 pixels.

Sources. Anole: jadohu/LANTERN, models/ea_model_anole.py (tokens 0 ... 8710 8197, without the prompt
0 8197); models/base_models/lumina_mgpt/item_processor.py (names of Lumina's image, size and row-end
tokens). Lumina-mGPT: Alpha-VLLM/Lumina-mGPT, lumina_mgpt/generate_examples/generate.py (the words),
lumina_mgpt/inference_solver.py (the unconditional row starts at <boi>; where row ends stand).
"""

from __future__ import annotations

import re
from dataclasses import replace
from functools import partial

from decoders.api import DecoderError
from decoders.models.hub import Family, Layout, load_model
from decoders.models.text.prompts import TOKENIZER, Template
from decoders.models.vq.pictures import CHAMELEON

START, SEPARATOR, BOI = "<s>", "<reserved08706>", "<racm3:break>"
SIZE = 8800  # <reserved08800 + n>: n blocks of 32 pixels
DOWN, BLOCK = 16, 32  # pixels of a code, pixels that a size token counts


def anole_template(grid: int) -> Template:
    """The same for every grid."""
    del grid
    return Template("{prompt}", (START,), (SEPARATOR, BOI), uncond=(START, BOI))


def lumina_template(grid: int) -> Template:
    """For square images of `grid` codes a side, which must be whole blocks of 32 pixels."""
    side = grid * DOWN
    if side % BLOCK:
        raise DecoderError(f"model.grid must be even for Lumina-mGPT, found {grid}")
    size = f"<reserved{SIZE + side // BLOCK:05d}>"
    image = (BOI, size, size)
    text = f"Generate an image of {side}x{side} according to the following prompt:\n{{prompt}}"
    return Template(text, (START,), (SEPARATOR, *image), uncond=image)


ANOLE = Family(
    "Anole",
    (Layout("model.", ("lm_head.weight",), CHAMELEON, ("model.vqmodel.",)),),
    anole_template,
    code=re.compile(r"IMGIMG([A-J]+)Z"),  # the number in letters, A for 0
    fixed={"qk_norm": True},
    tokenizers=(
        TOKENIZER,
        "text_tokenizer.json",
        "tokenizer/text_tokenizer.json",
        "chameleon/tokenizer/text_tokenizer.json",
        "original_tokenizers/text_tokenizer.json",
    ),
)
LUMINA = replace(ANOLE, name="Lumina-mGPT", template=lumina_template, row_end="<reserved08799>")


load_anole = partial(
    load_model, ANOLE, name="anole_7b", checkpoint="leloy/Anole-7b-v0.1-hf", grid=32, top_k=2000
)  # 32 x 32 codes are 512 pixels
load_lumina = partial(
    load_model,
    LUMINA,
    name="lumina_mgpt_7b_768",
    checkpoint="Alpha-VLLM/Lumina-mGPT-7B-768",
    grid=48,
    top_k=2000,
)  # 48 rows of 48 codes and a row end are 768 pixels
