"""Prompts as tokens of a Chameleon model's own vocabulary (2405.09818), for Anole and Lumina-mGPT.

Templates, as in the released decoding code (a name stands for its token):

    Anole   conditional    <s> prompt <sep> <boi>            unconditional  <s> <boi>
    Lumina  conditional    <s> "Generate an image of 768x768 according to the following
                           prompt:\\n" prompt <sep> <boi> <height> <width>
            unconditional  <boi> <height> <width>

<boi> is ``<racm3:break>``, <sep> ``<reserved08706>``; Lumina's size tokens ``<reserved088NN>``
count blocks of 32 pixels. Prompts are padded on the left to P positions.

Sources. Anole: jadohu/LANTERN, models/ea_model_anole.py (tokens 0 ... 8710 8197, without the prompt
0 8197); models/base_models/lumina_mgpt/item_processor.py (names of Lumina's image, size and row-end
tokens). Lumina-mGPT: Alpha-VLLM/Lumina-mGPT, lumina_mgpt/generate_examples/generate.py (the words),
lumina_mgpt/inference_solver.py (the unconditional row starts at <boi>; where row ends stand).
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from decoders.api import DecoderError, TextFeatures
from decoders.models.checkpoint import Checkpoint, locate
from decoders.models.text.tokens import left_padded, read_tokenizer
from decoders.models.weights import read_json

START, SEPARATOR, BOI, EOI = "<s>", "<reserved08706>", "<racm3:break>", "<eoss>"
ROW_END = "<reserved08799>"
SIZE = 8800  # <reserved08800 + n>: n blocks of 32 pixels
CODE = re.compile(r"IMGIMG([A-J]+)Z")  # a code's number in letters, A for 0
DIGITS = str.maketrans("ABCDEFGHIJ", "0123456789")
DOWN, BLOCK = 16, 32  # pixels of a code, pixels that a size token counts
TOKENIZERS = (
    "tokenizer.json",
    "text_tokenizer.json",
    "tokenizer/text_tokenizer.json",
    "chameleon/tokenizer/text_tokenizer.json",
    "original_tokenizers/text_tokenizer.json",
)


@dataclass(frozen=True)
class Vocabulary:
    """Token names of a checkpoint and their ids."""

    names: Mapping[str, int]
    path: Path

    def id(self, name: str) -> int:
        """Raises DecoderError where there is no such token."""
        if name not in self.names:
            raise DecoderError(
                f"the vocabulary of {self.path} has no {name}; is this a Chameleon checkpoint, and "
                "has it an image of this size?"
            )
        return self.names[name]

    def code_tokens(self) -> Tensor:
        """[n] int64: the token of every code, by the number in its name. Raises DecoderError where
        the numbers are not 0..n - 1."""
        matches = ((CODE.fullmatch(name), token) for name, token in self.names.items())
        tokens = {int(m[1].translate(DIGITS)): token for m, token in matches if m}
        if not tokens or sorted(tokens) != list(range(len(tokens))):
            raise DecoderError(
                f"the vocabulary of {self.path} must name its codes IMGIMG<number in letters>Z "
                f"from 0 on, found {len(tokens)} of them"
            )
        return torch.tensor([tokens[code] for code in range(len(tokens))])


def read_vocabulary(opened: Checkpoint, tokenizer: str | None = None) -> Vocabulary:
    """From config.json's `vocabulary_map`, else from the tokenizer's file."""
    names = opened.config.get("vocabulary_map")
    if names:
        return Vocabulary(names, opened.path)
    path = tokenizer_file(opened, tokenizer)
    content = read_json(path)
    try:
        added = {token["content"]: token["id"] for token in content.get("added_tokens", [])}
        return Vocabulary({**content["model"]["vocab"], **added}, path)
    except (KeyError, TypeError) as error:
        raise DecoderError(
            f"{path} is no tokenizer file: expected model.vocab with a number for every token"
        ) from error


def tokenizer_file(opened: Checkpoint, source: str | None) -> Path:
    """The tokenizer's file: at `source` (a file, folder or hub id), else beside the checkpoint."""
    place = opened.path if source is None else locate(source, TOKENIZERS, "Chameleon tokenizer")
    if source is not None and place.is_file():
        return place
    folder = place if place.is_dir() else place.parent
    found = [folder / name for name in TOKENIZERS if (folder / name).is_file()]
    if not found:
        raise DecoderError(
            f"no tokenizer in {folder}: expected {TOKENIZERS[0]} (of the checkpoint) or "
            f"{TOKENIZERS[1]} (of the Chameleon release); put it there or set model.text"
        )
    return found[0]


@dataclass(frozen=True)
class Template:
    """What surrounds a prompt: words within the text, tokens before and after it."""

    text: str
    before: tuple[int, ...]
    after: tuple[int, ...]
    uncond: tuple[int, ...]


def anole_template(vocabulary: Vocabulary) -> Template:
    start, separator, boi = (vocabulary.id(name) for name in (START, SEPARATOR, BOI))
    return Template("{prompt}", (start,), (separator, boi), (start, boi))


def lumina_template(vocabulary: Vocabulary, grid: int) -> Template:
    """For square images of `grid` codes a side, which must be whole blocks of 32 pixels."""
    side = grid * DOWN
    if side % BLOCK:
        raise DecoderError(f"model.grid must be even for Lumina-mGPT, found {grid}")
    start, separator, boi = (vocabulary.id(name) for name in (START, SEPARATOR, BOI))
    size = vocabulary.id(f"<reserved{SIZE + side // BLOCK:05d}>")
    image = (boi, size, size)
    text = f"Generate an image of {side}x{side} according to the following prompt:\n{{prompt}}"
    return Template(text, (start,), (separator, *image), image)


class ChameleonEncoder:
    """`decoders.api.TextEncoder` over token ids. The tokenizer is read when a prompt is encoded.

    length: P, the template included. source: the tokenizer's file, folder or hub id; None: beside
    the checkpoint.
    """

    def __init__(
        self,
        opened: Checkpoint,
        vocabulary: Vocabulary,
        template: Template,
        length: int,
        source: str | None = None,
        device: torch.device | str = "cpu",
    ) -> None:
        self.opened, self.source, self.template = opened, source, template
        self.vocabulary = vocabulary
        self.length, self.device = length, torch.device(device)
        control = (vocabulary.names.get(name) for name in (SEPARATOR, BOI, EOI, ROW_END))
        self.control = {*template.before, *template.after, *vocabulary.code_tokens().tolist()}
        self.control |= {token for token in control if token is not None}
        self._tokenizer: Any = None

    def check(self, prompts: list[str]) -> None:
        """Raises what `encode` would raise."""
        self._rows(prompts)

    def encode(self, prompts: list[str]) -> TextFeatures:
        """Prompts -> ids [B, P] int64 and mask [B, P] bool, left-padded, with those of the
        unconditional prompt.

        Raises DecoderError: no or empty prompts, one that is too long or holds control tokens, no
        tokenizer.
        """
        ids, mask = left_padded(self._rows(prompts), self.length, self.device)
        uncond, uncond_mask = left_padded(
            [list(self.template.uncond)] * len(prompts), self.length, self.device
        )
        return TextFeatures(ids, mask, uncond, uncond_mask)

    def _rows(self, prompts: list[str]) -> list[list[int]]:
        if not prompts:
            raise DecoderError("no prompts given: expected at least one caption")
        return [self._ids(prompt) for prompt in prompts]

    def _ids(self, prompt: str) -> list[int]:
        if not prompt.strip():
            raise DecoderError(f"empty prompt {prompt!r}: expected a description of an image")
        words = self._load().encode(
            self.template.text.replace("{prompt}", prompt), add_special_tokens=False
        )
        if self.control.intersection(words.ids):
            raise DecoderError(
                f"prompt {prompt!r} holds control tokens of the model; write it in words"
            )
        ids = [*self.template.before, *words.ids, *self.template.after]
        if len(ids) > self.length:
            raise DecoderError(
                f"prompt has {len(ids)} tokens with its template, at most {self.length} fit: "
                f"{prompt!r}; shorten it or raise model.prefix"
            )
        return ids

    def _load(self) -> Any:
        if self._tokenizer is None:
            self._tokenizer = read_tokenizer(tokenizer_file(self.opened, self.source))
        return self._tokenizer
