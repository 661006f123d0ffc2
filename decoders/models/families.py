"""The Llama decoders that draw: Anole and Lumina-mGPT (Chameleon), Janus-Pro, Emu3-Gen.

What each is to `decoders.models.hub`, and its usual settings. Prompts are those of the released
decoding code; a name in angle brackets is one token.

Anole-7B and Lumina-mGPT-7B (Chameleon, 2405.09818): one model with text and image tokens and
normalised queries and keys. Anole makes 32 x 32 codes; Lumina-mGPT 48 x 48 at 768 pixels, with a
row end after every row.

    Anole   conditional    <s> prompt <sep> <boi>            unconditional  <s> <boi>
    Lumina  conditional    <s> "Generate an image of 768x768 according to the following
                           prompt:\\n" prompt <sep> <boi> <height> <width>
            unconditional  <boi> <height> <width>

<boi> is ``<racm3:break>``, <sep> ``<reserved08706>``; Lumina's size tokens ``<reserved088NN>``
count blocks of 32 pixels. Sources. Anole: jadohu/LANTERN, models/ea_model_anole.py (tokens 0 ...
8710 8197, without the prompt 0 8197); models/base_models/lumina_mgpt/item_processor.py (names of
Lumina's image, size and row-end tokens). Lumina-mGPT: Alpha-VLLM/Lumina-mGPT,
lumina_mgpt/generate_examples/generate.py (the words), lumina_mgpt/inference_solver.py (the
unconditional row starts at <boi>; where row ends stand).

Janus-Pro-7B (2501.17811): draws with a head and a VQ tokenizer of its own. Codes are no words of
the vocabulary. A code's embedding is an aligner, two layers, over a table of 8 numbers for each
code; it is computed once, while loading, and stands below the words in one table. The head has two
layers; pictures come from LlamaGen's VQ-16. Two layouts are read: DeepSeek's own and transformers'.

    <bos> "<|User|>: " prompt "\\n\\n<|Assistant|>:" <begin_of_image>
    unconditional: the same length, with padding tokens between the first and the last; Janus
    attends to them, so the unconditional row has the conditional one's mask

Sources: deepseek-ai/Janus, README.md (roles, padding tokens in `generate`, guidance 5, temperature
1, no filter, 576 codes of 24 x 24, logits uncond + cfg (cond - uncond)),
janus/models/processing_vlm.py (tags of image and padding), janus/models/modeling_vlm.py (aligner,
head) and janus/models/vq_model.py (VQ-16: 16384 codes of 8 numbers, 256 channels). Sizes:
config.json of deepseek-ai/Janus-Pro-7B on the hub. Names in transformers' layout and the template's
words: huggingface/transformers, src/transformers/models/janus/convert_janus_weights_to_hf.py.

Emu3-Gen (2409.18869): its vocabulary holds 32,768 visual tokens. A picture of 720 x 720 pixels is
90 rows of 90 codes, and every row is closed by an end-of-line token: the grammar of Lumina-mGPT's
row ends. The 32 query heads share 8 heads of keys and values (2305.13245).

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
from dataclasses import replace
from functools import partial
from math import isqrt
from typing import Any

from decoders.api import DecoderError
from decoders.models.hub import Family, Layout, load_model
from decoders.models.text.prompts import TOKENIZER, Template
from decoders.models.vq import pictures

# ---- Chameleon ----------------------------------------------------------------------------------

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


def levels_of(vq: dict[str, Any]) -> int:
    """How often transformers' Chameleon halves a picture."""
    return len(vq.get("channel_multiplier", (1, 1, 2, 2, 4))) - 1


ANOLE = Family(
    "Anole",
    (Layout("model.", ("lm_head.weight",), pictures.CHAMELEON, ("model.vqmodel.",)),),
    anole_template,
    code=re.compile(r"IMGIMG([A-J]+)Z"),  # the number in letters, A for 0
    sides={"vq_config": lambda vq: vq.get("resolution", 512) >> levels_of(vq)},
    fixed={"qk_norm": True},
    tokenizers=(
        TOKENIZER,
        "text_tokenizer.json",
        "tokenizer/text_tokenizer.json",
        "chameleon/tokenizer/text_tokenizer.json",
        "original_tokenizers/text_tokenizer.json",
    ),
)
# Its config.json has Chameleon's resolution; it is trained on several larger ones.
LUMINA = replace(
    ANOLE, name="Lumina-mGPT", template=lumina_template, row_end="<reserved08799>", sides={}
)


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

# ---- Janus-Pro ----------------------------------------------------------------------------------

TRANSFORMERS = Layout(
    words="model.language_model.",
    head=("model.generation_head.proj_out", "model.generation_head.vision_head"),
    pictures=pictures.JANUS,
    elsewhere=("model.vqmodel.", "model.vision_model.", "model.aligner.", "lm_head."),
    codes="model.generation_embeddings.weight",
    aligner=("model.generation_aligner.fc1", "model.generation_aligner.hidden_layers.0"),
)
DEEPSEEK = Layout(
    words="language_model.model.",
    head=("gen_head.output_mlp_projector", "gen_head.vision_head"),
    pictures=pictures.DEEPSEEK,
    elsewhere=("gen_vision_model.", "vision_model.", "aligner.", "language_model.lm_head."),
    codes="gen_embed.weight",
    aligner=("gen_aligner.layers.0", "gen_aligner.layers.2"),
)
TEMPLATE = Template(
    "<|User|>: {stripped}\n\n<|Assistant|>:",
    ("<｜begin▁of▁sentence｜>",),  # noqa: RUF001
    ("<begin_of_image>",),
    pad="<｜▁pad▁｜>",  # noqa: RUF001
)
JANUS = Family(
    "Janus-Pro",
    (TRANSFORMERS, DEEPSEEK),
    lambda grid: TEMPLATE,
    sections=("text_config", "language_config"),
    # Of transformers' LlamaConfig: DeepSeek's config.json leaves out what is equal to it.
    usual={"hidden_size": 4096, "intermediate_size": 11008, "num_attention_heads": 32},
    places=16384,
    norm_eps=1e-6,
    sides={
        "vq_config.num_patches": int,
        "vision_config.num_image_tokens": isqrt,
        "vision_config.params.image_size": lambda pixels: pixels // DOWN,  # DeepSeek's layout
    },
    fixed={"head": "mlp"},
)


# In transformers' or DeepSeek's layout; 24 x 24 codes are 384 pixels.
load_janus = partial(
    load_model,
    JANUS,
    name="janus_pro_7b",
    checkpoint="deepseek-community/Janus-Pro-7B",
    grid=24,
    cfg=5.0,
)

# ---- Emu3-Gen -----------------------------------------------------------------------------------

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


def emu3_template(grid: int) -> Template:
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
    emu3_template,
    code=re.compile(r"<\|visual token (\d+)\|>"),
    row_end="<|extra_200|>",
    sections=("text_config",),
    # Emu3-Gen-hf's config.json leaves out what is as in transformers' Emu3TextConfig.
    usual={
        "hidden_size": 4096, "intermediate_size": 14336, "num_attention_heads": 32,
        "num_key_value_heads": 8, "num_hidden_layers": 32, "vocab_size": 184622,
    },
    places=9216,
    rope_base=1e6,
    sides={"image_area": lambda pixels: isqrt(pixels) // 8},
)  # fmt: skip


# In transformers' or BAAI's layout: 90 rows of 90 codes and a row end are 720 pixels; the prompt
# names the grid.
load_emu3 = partial(
    load_model,
    EMU3,
    name="emu3_gen",
    checkpoint="BAAI/Emu3-Gen-hf",
    grid=90,
    prefix=160,
    top_k=2048,
)
