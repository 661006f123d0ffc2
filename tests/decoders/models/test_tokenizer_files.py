"""A tokenizer.json keeps the truncation and padding of the program that saved it. A prompt has the
same tokens all the same."""

import string
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from tokenizers import Regex, Tokenizer, models, pre_tokenizers

from decoders.models.janus import TEMPLATE
from decoders.models.loading.checkpoint import Checkpoint
from decoders.models.prompts import PromptEncoder

PROMPT = "a red bus on a street near a long river"
SAVED: dict[str, Callable[[Any], None]] = {
    "truncated": lambda it: it.enable_truncation(16),
    "truncated on the left": lambda it: it.enable_truncation(16, direction="left"),
    "padded": lambda it: it.enable_padding(length=96, pad_id=0, pad_token="<unk>"),
    "truncated and padded": lambda it: (it.enable_truncation(16), it.enable_padding(length=64)),
}


def encoder(folder: Path, change: Callable[[Any], None] = lambda it: None) -> PromptEncoder:
    """Janus-Pro's encoder of a tokenizer of single characters."""
    names = [name for name in (*TEMPLATE.before, *TEMPLATE.after, TEMPLATE.pad) if name]
    words = ["<unk>", *string.printable, *names]
    ids = {word: number for number, word in enumerate(words)}
    tokenizer = Tokenizer(models.WordLevel(ids, unk_token="<unk>"))
    tokenizer.pre_tokenizer = pre_tokenizers.Split(Regex(r"[\s\S]"), "isolated")
    tokenizer.add_special_tokens(names)
    change(tokenizer)
    folder.mkdir()
    tokenizer.save(str(folder / "tokenizer.json"))
    return PromptEncoder(Checkpoint(folder, {}, {}), TEMPLATE, length=200)


@pytest.mark.parametrize("how", SAVED)
def test_a_prompt_is_neither_cut_nor_padded_by_the_settings_of_a_saved_tokenizer(how, tmp_path):
    plain = encoder(tmp_path / "plain").encode([PROMPT])
    saved = encoder(tmp_path / "saved", SAVED[how]).encode([PROMPT])
    assert int(plain.mask.sum()) > len(PROMPT)
    for one, other in ((plain.features, saved.features), (plain.mask, saved.mask)):
        assert (one == other).all()
    assert (plain.uncond == saved.uncond).all()
