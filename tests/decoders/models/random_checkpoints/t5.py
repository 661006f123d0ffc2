"""A small random T5 encoder with a tokenizer of whole words, in the layout of a released one."""

from collections.abc import Sequence
from pathlib import Path

import torch

WIDTH = 16
SPECIAL = ("<pad>", "</s>", "<unk>")


def write_t5(folder: Path, words: Sequence[str], width: int = 32) -> Path:
    """Writes config.json, model.safetensors, tokenizer.json and tokenizer_config.json. words: after
    `SPECIAL`; others are unknown to it."""
    from tokenizers import Tokenizer, models, pre_tokenizers, processors
    from transformers import PreTrainedTokenizerFast, T5Config, T5EncoderModel

    names = [*SPECIAL, *words]
    config = T5Config(
        vocab_size=len(names), d_model=width, d_kv=4, d_ff=24, num_layers=2, num_heads=4,
        feed_forward_proj="gated-gelu", pad_token_id=0, eos_token_id=1,
    )  # fmt: skip
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        T5EncoderModel(config).save_pretrained(folder)
    known = {name: i for i, name in enumerate(names)}
    made = Tokenizer(models.WordLevel(known, unk_token="<unk>"))
    made.pre_tokenizer = pre_tokenizers.Whitespace()
    made.post_processor = processors.TemplateProcessing(
        single="$A </s>", special_tokens=[("</s>", 1)]
    )
    PreTrainedTokenizerFast(
        tokenizer_object=made, pad_token="<pad>", eos_token="</s>", unk_token="<unk>"
    ).save_pretrained(folder)
    return folder


def save_t5(folder: Path, width: int = WIDTH) -> Path:
    """One that knows a few words."""
    return write_t5(folder, ["a", "red", "blue", "cube", "ring", "on", "cat", "."], width)
