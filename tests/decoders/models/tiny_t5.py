"""A tiny random T5 encoder with a word tokenizer, saved in the layout of a released one."""

from __future__ import annotations

from pathlib import Path

from decoders.models.made.t5 import SPECIAL, write_t5

WIDTH = 16
WORDS = [*SPECIAL, "a", "red", "blue", "cube", "ring", "on", "cat", "."]


def save_t5(folder: Path, width: int = WIDTH) -> Path:
    """Writes config.json, model.safetensors, tokenizer.json and tokenizer_config.json."""
    return write_t5(folder, WORDS[len(SPECIAL) :], width)
