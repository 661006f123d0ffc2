"""Prompts as tokens of a model's own vocabulary (Chameleon and others): one encoder, a template
for each model. Rows are padded on the left to P positions."""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from decoders.api import DecoderError, TextFeatures
from decoders.models.checkpoint import Checkpoint
from decoders.models.repository import find, locate
from decoders.models.weights import read_json

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


@dataclass(frozen=True)
class Vocabulary:
    """Token names of a checkpoint and their ids."""

    names: Mapping[str, int]
    path: Path

    def id(self, name: str) -> int:
        """Raises DecoderError where there is no such token."""
        if name not in self.names:
            raise DecoderError(
                f"the vocabulary of {self.path} has no {name}; is it this model's, and does the "
                "model draw images of this size?"
            )
        return self.names[name]

    def code_tokens(self, code: re.Pattern[str], row_end: str | None = None) -> Tensor:
        """[V] int64: the token of every code, by the number in its name, which is the pattern's
        first group; the row end's, where there is one, is the last. Raises DecoderError where the
        numbers are not 0, 1, ..."""
        matches = ((code.fullmatch(name), token) for name, token in self.names.items())
        tokens = {int(m[1].translate(LETTERS)): token for m, token in matches if m}
        if not tokens or sorted(tokens) != list(range(len(tokens))):
            raise DecoderError(
                f"the vocabulary of {self.path} must name its codes {code.pattern} from 0 on, "
                f"found {len(tokens)} of them; is it this model's?"
            )
        codes = [tokens[number] for number in range(len(tokens))]
        return torch.tensor(codes if row_end is None else [*codes, self.id(row_end)])


def read_vocabulary(
    opened: Checkpoint, source: str | None, files: Sequence[str] = (TOKENIZER,)
) -> Vocabulary:
    """From config.json's `vocabulary_map`, else from the tokenizer's file."""
    names = opened.config.get("vocabulary_map")
    if names:
        return Vocabulary(names, opened.path)
    path = tokenizer_file(opened, source, files)
    content = read_json(path)
    try:
        added = {token["content"]: int(token["id"]) for token in content.get("added_tokens", [])}
        return Vocabulary({**content["model"]["vocab"], **added}, path)
    except (KeyError, TypeError, ValueError) as error:
        raise DecoderError(
            f"{path} is no tokenizer file: expected model.vocab with a number for every token"
        ) from error


def tokenizer_file(
    opened: Checkpoint, source: str | None, files: Sequence[str] = (TOKENIZER,)
) -> Path:
    """The tokenizer's file: at `source` (a file, folder or hub id), else next to the checkpoint."""
    place = opened.folder if source is None else locate(source, files, "text tokenizer")
    if place.is_file():
        return place
    found = find(place, files)
    if found is None:
        raise DecoderError(
            f"no tokenizer in {place}: expected {' or '.join(files[:2])}; put the released "
            "model's there or set model.text"
        )
    return found


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
        self._tokenizer: Any = None

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
        found = self._load().token_to_id(name)
        if found is None:
            raise DecoderError(
                f"{tokenizer_file(self.opened, self.source, self.files)} has no token {name!r}; "
                "is it the tokenizer of this model? Set model.text to its own"
            )
        return int(found)

    def _rows(self, prompts: list[str]) -> list[list[int]]:
        if not prompts:
            raise DecoderError("no prompts given: expected at least one caption")
        return [self._ids(prompt) for prompt in prompts]

    def _ids(self, prompt: str) -> list[int]:
        if not prompt.strip():
            raise DecoderError(f"empty prompt {prompt!r}: expected a description of an image")
        text = self.template.text.replace("{stripped}", prompt.strip()).replace("{prompt}", prompt)
        made = self._load().encode(text, add_special_tokens=False)
        held = [name for name in self._control_names() if name in prompt]
        held += [t for i, t in zip(made.ids, made.tokens, strict=True) if i in self.control]
        if held:
            raise DecoderError(
                f"prompt {prompt!r} holds the control token {held[0]!r}; write it in words"
            )
        ids = self._around(made.ids)
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
        added = self._load().get_added_tokens_decoder().values()
        names = {t.content for t in added if t.special or re.fullmatch("<.+>", t.content, re.S)}
        own = (*template.before, *template.after, *template.uncond, template.pad)
        return {name for name in names.union(own) if name.strip() and name[0] != " "}

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
        return list(self._load().encode(text, add_special_tokens=False).ids)

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

    def _load(self) -> Any:
        if self._tokenizer is None:
            from tokenizers import Tokenizer

            path = tokenizer_file(self.opened, self.source, self.files)
            read_json(path)  # a clear message where it is no JSON
            self._tokenizer = Tokenizer.from_file(str(path))
        return self._tokenizer
