"""A tiny random T5 encoder with a word tokenizer, saved in the layout of a released one."""

from __future__ import annotations

from pathlib import Path

import torch
from tokenizers import Tokenizer, models, pre_tokenizers, processors

WIDTH = 16
WORDS = ["<pad>", "</s>", "<unk>", "a", "red", "blue", "cube", "ring", "on", "cat", "."]


def save_t5(folder: Path, width: int = WIDTH) -> Path:
    """Writes config.json, model.safetensors, tokenizer.json and tokenizer_config.json."""
    from transformers import PreTrainedTokenizerFast, T5Config, T5EncoderModel

    config = T5Config(
        vocab_size=len(WORDS), d_model=width, d_kv=4, d_ff=24, num_layers=2, num_heads=4,
        feed_forward_proj="gated-gelu", pad_token_id=0, eos_token_id=1,
    )  # fmt: skip
    torch.manual_seed(0)
    T5EncoderModel(config).save_pretrained(folder)
    words = Tokenizer(models.WordLevel({w: i for i, w in enumerate(WORDS)}, unk_token="<unk>"))
    words.pre_tokenizer = pre_tokenizers.Whitespace()
    words.post_processor = processors.TemplateProcessing(
        single="$A </s>", special_tokens=[("</s>", 1)]
    )
    PreTrainedTokenizerFast(
        tokenizer_object=words, pad_token="<pad>", eos_token="</s>", unk_token="<unk>"
    ).save_pretrained(folder)
    return folder
