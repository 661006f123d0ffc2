"""Janus-Pro-7B (2501.17811): a Llama decoder that draws with a head and a VQ tokenizer of its own.

Codes are no words of the vocabulary. A code's embedding is an aligner, two layers, over a table of
8 numbers for each code; it is computed once, while loading, and stands below the words in one
table. The head has two layers; pictures come from LlamaGen's VQ-16. Two layouts are read:
DeepSeek's own and transformers'. Prompts (a name in angle brackets is one token):

    <bos> "<|User|>: " prompt "\\n\\n<|Assistant|>:" <begin_of_image>
    unconditional: the same length, with padding tokens between the first and the last; Janus
    attends to them, so the unconditional row has the conditional one's mask

Sources: deepseek-ai/Janus, README.md (roles, padding tokens in `generate`, guidance 5, temperature
1, no filter, 576 codes of 24 x 24, logits uncond + cfg (cond - uncond)),
janus/models/processing_vlm.py (tags of image and padding), janus/models/modeling_vlm.py (aligner,
head) and janus/models/vq_model.py (VQ-16: 16384 codes of 8 numbers, 256 channels). Sizes:
config.json of deepseek-ai/Janus-Pro-7B on the hub. Names in transformers' layout and the template's
words: huggingface/transformers, src/transformers/models/janus/convert_janus_weights_to_hf.py.
"""

from __future__ import annotations

from functools import partial

from decoders.models.hub import Family, Layout, load_model
from decoders.models.text.prompts import Template
from decoders.models.vq import pictures

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
    "<|User|>: {prompt}\n\n<|Assistant|>:",
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
    fixed={"head": "mlp"},
)


# In transformers' or DeepSeek's layout; 24 x 24 codes are 384 pixels.
load = partial(
    load_model,
    JANUS,
    name="janus_pro_7b",
    checkpoint="deepseek-community/Janus-Pro-7B",
    grid=24,
    cfg=5.0,
)
