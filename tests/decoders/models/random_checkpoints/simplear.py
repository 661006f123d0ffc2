"""SimpleAR checkpoints with random weights, made by transformers, and a small `decoder.jit`."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from tests.decoders.models.random_checkpoints.chameleon import SHARP, randomise, write_tokenizer

SPECIAL = ("<unk>", "<|t2i|>", "<|soi|>")
LEVELS = (4, 3, 2)
CODES = 24


def vocabulary(words: Sequence[str]) -> dict[str, int]:
    """Token -> id; the codes stand behind them."""
    return {name: i for i, name in enumerate(dict.fromkeys([*SPECIAL, *words]))}


def hf_model(words: Sequence[str], **changes: Any) -> Any:
    """Qwen2 with keys that heads share, and one matrix for embedding and head."""
    from transformers import Qwen2Config, Qwen2ForCausalLM

    settings = {
        "vocab_size": len(vocabulary(words)) + CODES, "hidden_size": 32, "intermediate_size": 48,
        "num_hidden_layers": 2, "num_attention_heads": 4, "num_key_value_heads": 2,
        "max_position_embeddings": 8192, "tie_word_embeddings": True, **changes,
    }  # fmt: skip
    model: Any = randomise(Qwen2ForCausalLM(Qwen2Config(**settings)).eval())
    model.get_input_embeddings().weight.data *= SHARP
    return model


def write_checkpoint(folder: Path, model: Any, words: Sequence[str]) -> Path:
    """In transformers' layout, with a tokenizer of whole words."""
    model.save_pretrained(folder)
    write_tokenizer(folder / "tokenizer.json", vocabulary(words))
    return folder


class Colours(nn.Module):
    """A colour for each code, in squares of 16 pixels, as a frame: [B, 1, h, w] -> [B, 3, 1, H,
    W]."""

    def __init__(self) -> None:
        super().__init__()
        self.table = nn.Embedding(CODES, 3)

    def forward(self, codes: Tensor) -> Tensor:
        rgb = self.table(codes).tanh().permute(0, 4, 1, 2, 3)
        return rgb.repeat_interleave(16, 3).repeat_interleave(16, 4)


def write_decoder(folder: Path) -> Path:
    """decoder.jit in a folder, of random colours."""
    folder.mkdir(parents=True, exist_ok=True)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        torch.jit.script(Colours()).save(str(folder / "decoder.jit"))
    return folder
