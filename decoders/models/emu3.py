"""Emu3-Gen (2409.18869): a Llama decoder whose vocabulary holds 32,768 visual tokens.

A picture of 720 x 720 pixels is 90 rows of 90 codes, and every row is closed by an end-of-line
token: the grammar of Lumina-mGPT's row ends, so the same structural codes serve it. The 32 query
heads share 8 heads of keys and values (2305.13245). Prompts (a name in angle brackets is a token):

    <bos> prompt POSITIVE <image start> "90*90" <image token>
    unconditional: the same with NEGATIVE in the place of prompt and POSITIVE

Sources: baaivision/Emu3, image_generation.py (both prompts, guidance 3, top-k 2048, temperature 1;
the area of 720 x 720 is the model's `image_area`), emu3/mllm/processing_emu3.py (the prompts'
order), emu3/mllm/tokenization_emu3.py (names of the special tokens), emu3/mllm/utils_emu3.py (which
token may stand where: a row end after every row, the last one too), emu3/mllm/configuration_emu3.py
(sizes), emu3/tokenizer/configuration_emu3visionvq.py (32768 codes of 4 numbers, a factor of 8).
What follows the last row end (end of frame, image and text) is not drawn here.
"""

from __future__ import annotations

import re
from functools import partial

from decoders.models.hub import Family, Layout, described, load_model
from decoders.models.sizes import EMU3 as SIZES
from decoders.models.text.prompts import Template
from decoders.models.vq import pictures

POSITIVE = " masterpiece, film grained, best quality."
NEGATIVE = (
    "lowres, bad anatomy, bad hands, text, error, missing fingers, extra digit, fewer digits, "
    "cropped, worst quality, low quality, normal quality, jpeg artifacts, signature, watermark, "
    "username, blurry."
)
LAYOUTS = {  # where the words are -> where the head is
    "model.text_model.": "lm_head.weight",
    "text_model.model.": "text_model.lm_head.weight",
    "model.": "lm_head.weight",
}


def template(grid: int) -> Template:
    """For square images of `grid` codes a side."""
    return Template(
        f"{{prompt}}{POSITIVE}",
        ("<|extra_203|>",),
        ("<|image start|>", f" {grid}*{grid}", "<|image token|>"),
        negative=NEGATIVE,
    )


EMU3 = Family(
    "Emu3-Gen",
    tuple(
        Layout(words, (head,), pictures.EMU3, ("model.vqmodel.", "vqmodel."))
        for words, head in LAYOUTS.items()
    ),
    template,
    code=re.compile(r"<\|visual token (\d+)\|>"),
    row_end="<|extra_200|>",
    sections=("text_config",),
    # Emu3-Gen-hf's config.json leaves out what is as in transformers' Emu3TextConfig.
    usual=described(SIZES),
    places=9216,
    rope_base=1e6,
)


# In transformers' or BAAI's layout: 90 rows of 90 codes and a row end are 720 pixels; the prompt
# names the grid.
load = partial(
    load_model,
    EMU3,
    name="emu3_gen",
    checkpoint="BAAI/Emu3-Gen-hf",
    grid=90,
    prefix=160,
    top_k=2048,
)
