"""Prompts as tokens of a model's own vocabulary (Chameleon and others): one encoder, a template
for each model. Rows are padded on the left to P positions."""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from decoders.api import DecoderError, TextFeatures
from decoders.models.loading.checkpoint import Checkpoint
from decoders.models.loading.repository import find, locate
from decoders.models.loading.weights import read_json

TOKENIZER = "tokenizer.json"
LETTERS = str.maketrans("ABCDEFGHIJ", "0123456789")  # Chameleon writes a code's number so


@dataclass(frozen=True)
class Template:
    """What surrounds a prompt. text: words, with {prompt}, or {stripped} for the prompt without the
    white space around it. before, after: names of tokens, and in `after` words where a name starts
    with a space.

    The unconditional row is one of: `uncond`, names of all its tokens; `negative`, the words in the
    text's place; `pad`, tokens in the words' places.
    """

    text: str
    before: tuple[str, ...]
    after: tuple[str, ...]
    uncond: tuple[str, ...] = ()
    negative: str = ""
    pad: str = ""


def code_tokens(
    opened: Checkpoint,
    source: str | None,
    code: re.Pattern[str],
    row_end: str | None = None,
    files: Sequence[str] = (TOKENIZER,),
) -> Tensor:
    """[V] int64: the token of every code, by the number in its name, which is the pattern's first
    group; the row end's, where there is one, is the last. Names are those of config.json's
    `vocabulary_map`, else of the tokenizer. Raises DecoderError where the numbers are not 0, 1, ...
    """
    names: Mapping[str, int] | None = opened.config.get("vocabulary_map")
    if not names:
        names = read_tokenizer(opened, source, files).get_vocab()
    ends = [] if row_end is None else [row_end]
    matches = ((code.fullmatch(name), token) for name, token in names.items())
    tokens = {int(m[1].translate(LETTERS)): token for m, token in matches if m}
    if not tokens or sorted(tokens) != list(range(len(tokens))) or set(ends) - names.keys():
        raise DecoderError(
            f"the vocabulary of {opened.path} must name its codes {code.pattern} from 0 on"
            f"{''.join(f' and {end}' for end in ends)}, found {len(tokens)} codes; is it this "
            "model's?"
        )
    codes = [tokens[number] for number in range(len(tokens))]
    return torch.tensor(codes + [names[end] for end in ends])


def read_tokenizer(
    opened: Checkpoint, source: str | None, files: Sequence[str] = (TOKENIZER,)
) -> Any:
    """The tokenizer of `tokenizer_file`. Raises DecoderError."""
    from tokenizers import Tokenizer

    path = tokenizer_file(opened, source, files)
    read_json(path)  # a clear message where it is no JSON
    try:
        return Tokenizer.from_file(str(path))
    except Exception as error:  # the library raises nothing narrower
        raise DecoderError(
            f"{path} is no tokenizer file ({error}); download it again, or set model.text to the "
            "released model's"
        ) from error


def tokenizer_file(
    opened: Checkpoint, source: str | None, files: Sequence[str] = (TOKENIZER,)
) -> Path:
    """The tokenizer's file: at `source` (a file, folder or hub id), else next to the checkpoint."""
    where = opened.folder if source is None else locate(source, files, "text tokenizer")
    if where.is_file():
        return where
    file = find(where, files)
    if file is None:
        raise DecoderError(
            f"no tokenizer in {where}: expected {' or '.join(files[:2])}; put the released "
            "model's there or set model.text"
        )
    return file


class PromptEncoder:
    """`decoders.api.TextEncoder` over token ids. The tokenizer is read when a prompt is encoded.

    length: P, the template included. source: the tokenizer's file, folder or hub id; None: next to
    the checkpoint. files: its usual names. control: ids that no prompt may hold, besides control
    tokens by their names.
    """

    def __init__(
        self,
        opened: Checkpoint,
        template: Template,
        length: int,
        source: str | None = None,
        device: torch.device | str = "cpu",
        files: Sequence[str] = (TOKENIZER,),
        control: Collection[int] = (),
    ) -> None:
        self.opened, self.template, self.source, self.files = opened, template, source, files
        self.length, self.device = length, torch.device(device)
        self.control = frozenset(control)

    @cached_property
    def tokenizer(self) -> Any:
        return read_tokenizer(self.opened, self.source, self.files)

    def check(self, prompts: list[str]) -> None:
        """Raises what `encode` would raise."""
        self._rows(prompts)

    def encode(self, prompts: list[str]) -> TextFeatures:
        """Prompts -> ids [B, P] int64 and mask [B, P] bool, left-padded, with those of the
        unconditional prompt.

        Raises DecoderError: no or empty prompts, one that is too long or holds a control token, no
        tokenizer.
        """
        rows = self._rows(prompts)
        blank = [self._blank(row) for row in rows]
        return TextFeatures(*self._padded(rows), *self._padded(blank))

    def token(self, name: str) -> int:
        """The id of a token. Raises DecoderError where the tokenizer has none of that name."""
        token = self.tokenizer.token_to_id(name)
        if token is None:
            raise DecoderError(
                f"{tokenizer_file(self.opened, self.source, self.files)} has no token {name!r}; "
                "is it this model's (model.text), and does the model draw images of model.grid?"
            )
        return int(token)

    def _rows(self, prompts: list[str]) -> list[list[int]]:
        if not prompts:
            raise DecoderError("no prompts given: expected at least one caption")
        return [self._ids(prompt) for prompt in prompts]

    def _ids(self, prompt: str) -> list[int]:
        if not prompt.strip():
            raise DecoderError(f"empty prompt {prompt!r}: expected a description of an image")
        text = self.template.text.replace("{stripped}", prompt.strip()).replace("{prompt}", prompt)
        encoded = self.tokenizer.encode(text, add_special_tokens=False)
        held = [name for name in self._control_names() if name in prompt]
        held += [t for i, t in zip(encoded.ids, encoded.tokens, strict=True) if i in self.control]
        if held:
            raise DecoderError(
                f"prompt {prompt!r} holds the control token {held[0]!r}; write it in words"
            )
        ids = self._around(encoded.ids)
        if len(ids) > self.length:
            raise DecoderError(
                f"prompt has {len(ids)} tokens with its template, at most {self.length} fit: "
                f"{prompt!r}; shorten it or raise model.prefix"
            )
        return ids

    def _control_names(self) -> set[str]:
        """The template's tokens, and of those that the tokenizer adds the special ones and those in
        angle brackets. Others are text: DeepSeek's tokenizer adds letters, such as ü."""
        template = self.template
        added = self.tokenizer.get_added_tokens_decoder().values()
        names = {t.content for t in added if t.special or re.fullmatch("<.+>", t.content, re.S)}
        around = (*template.before, *template.after, *template.uncond, template.pad)
        return {name for name in names.union(around) if name.strip() and name[0] != " "}

    def _blank(self, row: list[int]) -> list[int]:
        """The unconditional row of a prompt's row."""
        template = self.template
        if template.uncond:
            return self._tokens(template.uncond)
        if template.negative:
            return self._around(self._words(template.negative))
        words = len(row) - len(self._around([]))
        return self._around([self.token(template.pad)] * words)

    def _around(self, words: Sequence[int]) -> list[int]:
        template = self.template
        return [*self._tokens(template.before), *words, *self._tokens(template.after)]

    def _tokens(self, names: Sequence[str]) -> list[int]:
        ids: list[int] = []
        for name in names:
            ids += self._words(name[1:]) if name.startswith(" ") else [self.token(name)]
        return ids

    def _words(self, text: str) -> list[int]:
        return list(self.tokenizer.encode(text, add_special_tokens=False).ids)

    def _padded(self, rows: list[list[int]]) -> tuple[Tensor, Tensor]:
        """Token ids and validity, both [B, P]; ids on the padding are 0 and never read."""
        longest = max(map(len, rows))
        if longest > self.length:
            raise DecoderError(
                f"the unconditional prompt has {longest} tokens, model.prefix is {self.length}; "
                "raise model.prefix"
            )
        ids = torch.zeros(len(rows), self.length, dtype=torch.long)
        mask = torch.zeros(len(rows), self.length, dtype=torch.bool)
        for row, tokens in enumerate(rows):
            ids[row, -len(tokens) :] = torch.tensor(tokens)
            mask[row, -len(tokens) :] = True
        return ids.to(self.device), mask.to(self.device)
