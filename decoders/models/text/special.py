"""Prompts of Janus-Pro (2501.17811) and Emu3 (2409.18869) as tokens, padded on the left.

Templates, as in the released code (a name in angle brackets is one token):

    Janus  <bos> "<|User|>: " prompt "\\n\\n<|Assistant|>:" <begin_of_image>
           unconditional: the same length, with padding tokens between the first and the last
    Emu3   <bos> prompt POSITIVE <image start> "90*90" <image token>
           unconditional: the same with NEGATIVE in the place of prompt and POSITIVE

Janus attends to its padding tokens, so the unconditional row has the conditional one's mask.

Sources. Janus: deepseek-ai/Janus, README.md (roles, padding tokens in `generate`),
janus/models/processing_vlm.py (tags of image and padding); the template's words also in
huggingface/transformers, src/transformers/models/janus/convert_janus_weights_to_hf.py. Emu3:
baaivision/Emu3, image_generation.py (both prompts), emu3/mllm/processing_emu3.py (their order),
emu3/mllm/tokenization_emu3.py (names of the special tokens).
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from decoders.api import DecoderError, TextFeatures
from decoders.models.checkpoint import Checkpoint, locate
from decoders.models.text.tokens import left_padded, read_tokenizer

TOKENIZER = "tokenizer.json"
POSITIVE = " masterpiece, film grained, best quality."
NEGATIVE = (
    "lowres, bad anatomy, bad hands, text, error, missing fingers, extra digit, fewer digits, "
    "cropped, worst quality, low quality, normal quality, jpeg artifacts, signature, watermark, "
    "username, blurry."
)


@dataclass(frozen=True)
class Template:
    """Names of the tokens `before` and `after` a prompt; the words around it, and within `after`.

    negative: the words of the unconditional prompt; None: `pad` tokens in the words' places.
    """

    before: str
    text: str  # with {prompt}
    after: tuple[str, ...]  # names of tokens, and words where a name starts with a space
    negative: str | None = None
    pad: str = ""


JANUS = Template(
    before="<｜begin▁of▁sentence｜>",  # noqa: RUF001
    text="<|User|>: {prompt}\n\n<|Assistant|>:",
    after=("<begin_of_image>",),
    pad="<｜▁pad▁｜>",  # noqa: RUF001
)


def emu3_template(grid: int) -> Template:
    """For square images of `grid` codes a side."""
    return Template(
        before="<|extra_203|>",
        text=f"{{prompt}}{POSITIVE}",
        after=("<|image start|>", f" {grid}*{grid}", "<|image token|>"),
        negative=NEGATIVE,
    )


class PromptEncoder:
    """`decoders.api.TextEncoder` over token ids. The tokenizer is read when a prompt is encoded.

    length: P, the template included. source: tokenizer.json, a folder or hub id with it; None:
    beside the checkpoint.
    """

    def __init__(
        self,
        opened: Checkpoint,
        template: Template,
        length: int,
        source: str | None = None,
        device: torch.device | str = "cpu",
    ) -> None:
        self.opened, self.template, self.source = opened, template, source
        self.length, self.device = length, torch.device(device)
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
        if self.template.negative is None:
            pad = self.token(self.template.pad)
            inner = len(self._after()) + 1
            blank = [[r[0], *[pad] * (len(r) - inner), *r[len(r) - inner + 1 :]] for r in rows]
        else:
            blank = [self._around(self.template.negative)] * len(rows)
        return TextFeatures(*self._padded(rows), *self._padded(blank))

    def token(self, name: str) -> int:
        """The id of a token. Raises DecoderError where the tokenizer has none of that name."""
        found = self._load().token_to_id(name)
        if found is None:
            raise DecoderError(
                f"{tokenizer_file(self.opened, self.source)} has no token {name!r}; is it the "
                "tokenizer of this model? Set model.text to its own"
            )
        return int(found)

    def _rows(self, prompts: list[str]) -> list[list[int]]:
        if not prompts:
            raise DecoderError("no prompts given: expected at least one caption")
        return [self._ids(prompt) for prompt in prompts]

    def _ids(self, prompt: str) -> list[int]:
        if not prompt.strip():
            raise DecoderError(f"empty prompt {prompt!r}: expected a description of an image")
        special = [t.content for t in self._load().get_added_tokens_decoder().values()]
        held = [name for name in special if name.strip() and name in prompt]
        if held:
            raise DecoderError(
                f"prompt {prompt!r} holds the control token {held[0]!r}; write it in words"
            )
        words = prompt.strip()  # Janus's processor does; Emu3's words follow the prompt
        ids = self._around(self.template.text.replace("{prompt}", words))
        if len(ids) > self.length:
            raise DecoderError(
                f"prompt has {len(ids)} tokens with its template, at most {self.length} fit: "
                f"{prompt!r}; shorten it or raise model.prefix"
            )
        return ids

    def _around(self, words: str) -> list[int]:
        return [self.token(self.template.before), *self._words(words), *self._after()]

    def _words(self, words: str) -> list[int]:
        return list(self._load().encode(words, add_special_tokens=False).ids)

    def _after(self) -> list[int]:
        ids: list[int] = []
        for name in self.template.after:
            ids += self._words(name[1:]) if name.startswith(" ") else [self.token(name)]
        return ids

    def _padded(self, rows: list[list[int]]) -> tuple[Tensor, Tensor]:
        """Token ids and validity, both [B, P]; ids on the padding are 0 and never read."""
        longest = max(map(len, rows))
        if longest > self.length:
            raise DecoderError(
                f"the unconditional prompt has {longest} tokens, model.prefix is {self.length}; "
                "raise model.prefix"
            )
        return left_padded(rows, self.length, self.device)

    def _load(self) -> Any:
        if self._tokenizer is None:
            self._tokenizer = read_tokenizer(tokenizer_file(self.opened, self.source))
        return self._tokenizer


def tokenizer_file(opened: Checkpoint, source: str | None) -> Path:
    """tokenizer.json: at `source` (a file, folder or hub id), else beside the checkpoint."""
    place = opened.folder if source is None else locate(source, (TOKENIZER,), "text tokenizer")
    path = place if place.is_file() else place / TOKENIZER
    if not path.is_file():
        raise DecoderError(
            f"no {TOKENIZER} in {place}: put the one of the released model there or set model.text"
        )
    return path
