"""Text encoders over tokens, with rows padded on the left to P positions: of a model's own
vocabulary (`PromptEncoder`, for Chameleon and others, with a template for each model), and of the
words of scenes (`WordEncoder`, which is trained together with the embedded target)."""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Annotated, Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from decoders.api import DecoderError, TextFeatures
from decoders.cache import additive_mask
from decoders.errors import did_you_mean
from decoders.files import one_line, read_object
from decoders.kinds import Within
from decoders.models.loading.checkpoint import Checkpoint
from decoders.models.loading.weights import find, locate

TOKENIZER_FILE = "tokenizer.json"
LETTERS = str.maketrans("ABCDEFGHIJ", "0123456789")  # Chameleon writes a code's number so


@dataclass(frozen=True)
class Template:
    """What surrounds a prompt. text: with {prompt}, or {stripped} without the white space around
    it. before, after: names of tokens, and text where a name starts with a space. The unconditional
    row is `uncond`, names of all its tokens; `negative`, another text; or `pad`, a token for
    each."""

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
    files: Sequence[str] = (TOKENIZER_FILE,),
) -> Tensor:
    """Returns the token of every code, [V] int64, by the number in its name, which is the pattern's
    first group; then the row end's. Names are those of config.json's `vocabulary_map`, else of the
    tokenizer. Raises DecoderError where the numbers are not 0, 1, ..."""
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
    opened: Checkpoint, source: str | None, files: Sequence[str] = (TOKENIZER_FILE,)
) -> Any:
    """Reads the tokenizer at `source` (a file, folder or hub id), else next to the checkpoint.
    Raises DecoderError."""
    from tokenizers import Tokenizer

    where = opened.folder if source is None else locate(source, files, "text tokenizer")
    path = where if where.is_file() else find(where, files)
    if path is None:
        raise DecoderError(
            f"no tokenizer in {where}: expected {' or '.join(files[:2])}; put the released "
            "model's there or set model.text"
        )
    read_object(path)  # a clear message where it is no JSON
    try:
        tokenizer = Tokenizer.from_file(str(path))
    except Exception as error:  # the library raises nothing narrower
        raise DecoderError(
            f"{path} is no tokenizer file ({error}); download it again, or set model.text to the "
            "released model's"
        ) from error
    # What a trainer left in the file would cut prompts or pad inside the template. Lengths are
    # the encoder's; `transformers` resets both as well.
    tokenizer.no_truncation()
    tokenizer.no_padding()
    return tokenizer


class PromptEncoder:
    """`decoders.api.TextEncoder` over token ids. The tokenizer is read when a prompt is encoded.
    length: P, the template included. source: the tokenizer's file, folder or hub id; None: next to
    the checkpoint. files: its usual names. control: ids that no prompt may hold, besides control
    tokens by their names."""

    def __init__(
        self,
        opened: Checkpoint,
        template: Template,
        length: int,
        source: str | None = None,
        device: torch.device | str = "cpu",
        files: Sequence[str] = (TOKENIZER_FILE,),
        control: Collection[int] = (),
    ) -> None:
        self.opened, self.template, self.source, self.files = opened, template, source, files
        self.length, self.device = length, torch.device(device)
        self.control = frozenset(control)

    @cached_property
    def tokenizer(self) -> Any:
        return read_tokenizer(self.opened, self.source, self.files)

    def encode(self, prompts: list[str]) -> TextFeatures:
        """Encodes prompts to ids [B, P] int64 and mask [B, P] bool, left-padded, with those of the
        unconditional prompt. Raises DecoderError: no or empty prompts, one that is too long or
        holds a control token, no tokenizer."""
        if not prompts:
            raise DecoderError("no prompts given: expected at least one caption")
        rows, template = [self._ids(prompt) for prompt in prompts], self.template
        if template.uncond:
            blank = [self._tokens(template.uncond)] * len(rows)
        elif template.negative:
            blank = [self._around(self._split(template.negative))] * len(rows)
        else:
            pad, around = self._tokens([template.pad]), len(self._around([]))
            blank = [self._around(pad * (len(row) - around)) for row in rows]
        return TextFeatures(*self._padded(rows), *self._padded(blank))

    def _ids(self, prompt: str) -> list[int]:
        """Returns the token ids of a prompt in its template."""
        if not prompt.strip():
            raise DecoderError(f"empty prompt {prompt!r}: expected a description of an image")
        template = self.template
        fields = {"{prompt}": prompt, "{stripped}": prompt.strip()}
        # In one pass: a prompt may hold such a word itself.
        text = re.sub("|".join(fields), lambda match: fields[match[0]], template.text)
        encoded = self.tokenizer.encode(text, add_special_tokens=False)
        # Control tokens are the template's, and of those that the tokenizer adds the special ones
        # and those in angle brackets. Others are text: DeepSeek's adds letters, such as ü.
        added = self.tokenizer.get_added_tokens_decoder().values()
        names = {t.content for t in added if t.special or re.fullmatch("<.+>", t.content, re.S)}
        names |= {*template.before, *template.after, *template.uncond, template.pad}
        control = [n for n in names if n.strip() and n[0] != " " and n in prompt]
        control += [
            t for i, t in zip(encoded.ids, encoded.tokens, strict=True) if i in self.control
        ]
        if control:
            raise DecoderError(
                f"prompt {prompt!r} holds the control token {control[0]!r}; write it in words"
            )
        ids = self._around(encoded.ids)
        if len(ids) > self.length:
            raise DecoderError(
                f"prompt has {len(ids)} tokens with its template, at most {self.length} fit: "
                f"{prompt!r}; shorten it or raise model.prefix"
            )
        return ids

    def _around(self, ids: Sequence[int]) -> list[int]:
        return [*self._tokens(self.template.before), *ids, *self._tokens(self.template.after)]

    def _tokens(self, names: Sequence[str]) -> list[int]:
        """Returns the ids of named tokens, and of text where a name starts with a space."""
        ids: list[int] = []
        for name in names:
            token = self.tokenizer.token_to_id(name)
            if name.startswith(" "):
                ids += self._split(name[1:])
            elif token is None:
                raise DecoderError(
                    f"the tokenizer at {self.source or self.opened.folder} has no token {name!r}; "
                    "is it this model's (model.text), and does the model draw images of model.grid?"
                )
            else:
                ids.append(int(token))
        return ids

    def _split(self, text: str) -> list[int]:
        return list(self.tokenizer.encode(text, add_special_tokens=False).ids)

    def _padded(self, rows: list[list[int]]) -> tuple[Tensor, Tensor]:
        """Pads token ids, [B, P], with their validity; ids on the padding are 0 and never read."""
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


# ---- words --------------------------------------------------------------------------------------

WORD = re.compile(r"[^\W_]+(?:'[^\W_]+)?|[^\w\s]")
IGNORED_SIGNS = {".", "!", ";", ":", '"'}


@dataclass(frozen=True)
class WordEncoderConfig:
    vocabulary: tuple[str, ...]
    width: Annotated[int, Within(1, 2**20)] = 128
    layers: Annotated[int, Within(1, 1024)] = 2
    heads: Annotated[int, Within(1, 1024)] = 4
    prefix: Annotated[int, Within(1, 2**16)] = 32


class WordTokenizer:
    """Splits prompts into words of a closed vocabulary. One with other words is refused with the
    nearest known ones: a model that never saw a word has nothing honest to draw for it."""

    def __init__(self, vocabulary: tuple[str, ...], prefix: int) -> None:
        self.index = {word: i + 1 for i, word in enumerate(vocabulary)}
        self.prefix = prefix

    def ids(self, prompt: str) -> list[int]:
        """Returns the numbers of a prompt's words, from 1 on. Raises DecoderError."""
        tokens = [t for t in WORD.findall(one_line(prompt).lower()) if t not in IGNORED_SIGNS]
        if not tokens:
            raise DecoderError(
                f"empty prompt {prompt!r}: expected an English caption of a scene, "
                "such as 'a small red ring on a plain grey background'"
            )
        unknown = [t for t in tokens if t not in self.index]
        if unknown:
            hints = ", ".join(f"{t!r}{did_you_mean(t, self.index)}" for t in unknown[:5])
            raise DecoderError(
                f"prompt {prompt!r} has {len(unknown)} of {len(tokens)} words that the embedded "
                f"text encoder never saw: {hints}. It knows {len(self.index)} words of scene "
                "captions; use prompts=scenes, or a model with a general text encoder"
            )
        if len(tokens) > self.prefix:
            raise DecoderError(
                f"prompt has {len(tokens)} words, at most {self.prefix} fit the "
                f"model's prefix: {prompt!r}; shorten it"
            )
        return [self.index[t] for t in tokens]

    def __call__(self, prompts: list[str]) -> tuple[Tensor, Tensor]:
        """Encodes prompts to left-padded ids [B, P] (0 is padding) and their mask."""
        if not prompts:
            raise DecoderError("no prompts given: expected at least one caption")
        ids = torch.zeros(len(prompts), self.prefix, dtype=torch.long)
        for row, prompt in enumerate(prompts):
            numbers = self.ids(prompt)
            ids[row, -len(numbers) :] = torch.tensor(numbers)
        return ids, ids > 0


class EncoderLayer(nn.Module):
    """A pre-norm bidirectional transformer layer."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.qkv, self.proj = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.fc1, self.fc2 = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, x: Tensor, bias: Tensor) -> Tensor:
        rows, length, width = x.shape
        qkv = self.qkv(self.norm1(x)).view(rows, length, 3, self.heads, -1)
        q, k, v = qkv.permute(2, 0, 3, 1, 4)  # [B, H, P, d] each
        mixed = F.scaled_dot_product_attention(q, k, v, attn_mask=bias.to(q.dtype))
        x = x + self.proj(mixed.transpose(1, 2).reshape(rows, length, width))
        return x + self.fc2(F.gelu(self.fc1(self.norm2(x))))


class WordEncoder(nn.Module):
    """`decoders.api.TextEncoder` over word ids: a few bidirectional layers. Positions count from
    the caption's first word."""

    def __init__(self, config: WordEncoderConfig) -> None:
        super().__init__()
        self.config = config
        self.tokenizer = WordTokenizer(config.vocabulary, config.prefix)
        self.words = nn.Embedding(len(config.vocabulary) + 1, config.width)
        self.positions = nn.Embedding(config.prefix, config.width)
        self.layers = nn.ModuleList(
            EncoderLayer(config.width, config.heads) for _ in range(config.layers)
        )
        self.norm = nn.LayerNorm(config.width)
        nn.init.normal_(self.words.weight, std=0.5)
        nn.init.normal_(self.positions.weight, std=0.2)

    def forward(self, ids: Tensor, mask: Tensor) -> TextFeatures:
        """ids, mask [B, P] -> features [B, P, F], zero on the padding."""
        position = (mask.long().cumsum(1) - 1).clamp_min(0)  # [B, P]
        x = self.words(ids) + self.positions(position)  # [B, P, F]
        eye = torch.eye(ids.shape[1], dtype=torch.bool, device=ids.device)
        visible = mask[:, None, None, :] | eye  # [B, 1, P, P]
        bias = additive_mask(visible)
        for layer in self.layers:
            x = layer(x, bias)
        return TextFeatures(self.norm(x) * mask[..., None], mask)

    @torch.no_grad()
    def encode(self, prompts: list[str]) -> TextFeatures:
        """Encodes prompts on the encoder's device; DecoderError on one that it cannot read."""
        ids, mask = self.tokenizer(prompts)
        device = self.words.weight.device
        return self(ids.to(device), mask.to(device))
