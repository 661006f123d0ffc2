"""flan-t5 caption features with LlamaGen's convention (2406.06525, METHODS 6).

Cleaned caption -> 120 tokens, padded on the right -> encoder -> rolled to left padding, zero on the
padding. Prompts are encoded one at a time, as the released code does, so features do not depend on
the batch. What a caption was encoded to is kept on disk: all rows of all studies read the same
captions, and where all are there the encoder is not loaded at all.

Captions are cleaned as LlamaGen was trained: the rules, made for captions of the web, are applied
in order, twice, also where they eat honest words ("free shipping", "grass.covered").
"""

from __future__ import annotations

import hashlib
import html
import logging
import re
import urllib.parse
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cached_property, partial
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from decoders.api import DecoderError, TextFeatures
from decoders.cache_folder import folder
from decoders.models.loading.checkpoint import Checkpoint, open_checkpoint
from decoders.models.loading.weights import kept_features, sha256_of

log = logging.getLogger(__name__)
T5_HUB_ID = "google/flan-t5-xl"
DECODER_TENSORS = ("decoder.", "lm_head.")  # tensors of the half that writes text
TOKENIZER_FILES = ("tokenizer.json", "spiece.model")


class T5Encoder:
    """`decoders.api.TextEncoder` over a T5 encoder; nothing is loaded before it is needed.
    checkpoint: a folder in transformers' layout (config.json, tokenizer.json, weights) or a hub id.
    length: P. dtype: the encoder's; features are float32 in any case."""

    def __init__(
        self,
        checkpoint: str = T5_HUB_ID,
        *,
        length: int = 120,
        device: torch.device | str = "cpu",
        dtype: torch.dtype = torch.bfloat16,
    ) -> None:
        self.checkpoint, self.length = checkpoint, length
        self.device, self.dtype = torch.device(device), dtype

    @cached_property
    def opened(self) -> Checkpoint:
        """The checkpoint; a hub id is fetched. Raises DecoderError."""
        return open_checkpoint(self.checkpoint, what="T5 text encoder")

    @cached_property
    def tokenizer(self) -> Any:
        """Raises DecoderError with what to download."""
        from transformers import AutoTokenizer

        from decoders.models.causal_lm import LOCAL_FILES_ONLY, explain_loading

        with explain_missing(), explain_loading(self.opened):
            return AutoTokenizer.from_pretrained(
                self.opened.folder,
                padding_side="right",
                truncation_side="right",
                **LOCAL_FILES_ONLY,
            )

    @cached_property
    def encoder(self) -> Any:
        """Raises DecoderError with what to download."""
        from transformers import T5EncoderModel

        from decoders.models.causal_lm import read_model

        with explain_missing():
            return read_model(self.opened, self.dtype, self.device, T5EncoderModel, DECODER_TENSORS)

    @cached_property
    def folder(self) -> Path:
        """Where features are kept: of these weights, computed so."""
        how = [*self.sha256().items(), str(self.dtype), self.device.type, self.length]
        return folder() / "captions" / hashlib.sha256(repr(how).encode()).hexdigest()[:16]

    def sha256(self) -> dict[str, str]:
        """Maps file names to the SHA-256 of the weights and the tokenizer."""
        tokenizer = (p for p in self.opened.folder.iterdir() if p.name in TOKENIZER_FILES)
        digests = self.opened.sha256() | {path.name: sha256_of(path) for path in tokenizer}
        return {f"text/{name}": digest for name, digest in digests.items()}

    def check(self, prompts: list[str]) -> None:
        """Raises what `encode` would raise, without encoding: a prompt that is empty, or of which
        cleaning leaves nothing; missing weights. Warns of prompts that will be cut."""
        for prompt in prompts:
            text = self._text(prompt)
            if not self._path(text).exists():
                _ = self.encoder
            if len(self.tokenizer(text, verbose=False)["input_ids"]) > self.length:
                log.warning("%r is cut at %d tokens, as LlamaGen does", prompt, self.length)

    @torch.inference_mode()
    def encode(self, prompts: list[str]) -> TextFeatures:
        """Encodes prompts to features [B, P, F] float32 on the device, zero on the padding, and
        mask [B, P]. A prompt of more than P tokens is cut, as the released code does. Raises
        DecoderError: no or empty prompts, no weights."""
        if not prompts:
            raise DecoderError("no prompts given: expected at least one caption")
        texts = map(self._text, prompts)
        rows = [kept_features(self._path(t), partial(self._features, t)) for t in texts]  # [n, F]
        features = torch.stack([F.pad(row, (0, 0, self.length - len(row), 0)) for row in rows])
        counts = torch.tensor([len(row) for row in rows])
        mask = torch.arange(self.length) >= self.length - counts[:, None]  # [B, P]
        return TextFeatures(features.to(self.device).float(), mask.to(self.device))

    def _path(self, text: str) -> Path:
        """Where the features of a cleaned caption are kept."""
        name = hashlib.sha256(text.encode()).hexdigest()
        return self.folder / name[:2] / f"{name}.safetensors"

    def _features(self, text: str) -> Tensor:
        """A cleaned caption's features [n, F] on the CPU, in the encoder's dtype."""
        tokens = self.tokenizer(
            text,
            max_length=self.length,
            padding="max_length",
            truncation=True,
            return_attention_mask=True,
            return_tensors="pt",
        )
        ids, mask = (tokens[k].to(self.device) for k in ("input_ids", "attention_mask"))  # [1, P]
        states = self.encoder(input_ids=ids, attention_mask=mask).last_hidden_state  # [1, P, F]
        features: Tensor = states[0, : int(mask.sum())].cpu()
        return features

    def _text(self, prompt: str) -> str:
        text = clean(prompt)
        if not text:
            why = "nothing is left of it after LlamaGen's cleaning" if prompt.strip() else "empty"
            raise DecoderError(f"prompt {prompt!r}: {why}; expected a caption in words")
        return text


@contextmanager
def explain_missing() -> Iterator[None]:
    """Says in a DecoderError what to download."""
    try:
        yield
    except DecoderError as error:
        raise DecoderError(
            f"the T5 text encoder: {error}. Download config.json, tokenizer.json and "
            f"*.safetensors of {T5_HUB_ID} (11 GB) into one folder and name it (model.text=FOLDER)"
        ) from error


# ---- cleaning -----------------------------------------------------------------------------------

DASHES = (
    "\u002d\u058a\u05be\u1400\u1806\u2010-\u2015\u2e17\u2e1a\u2e3a\u2e3b\u2e40\u301c\u3030\u30a0"
    "\ufe31\ufe32\ufe58\ufe63\uff0d"
)
SITE = r"[a-z0-9.\-]+\.(?:com|co|ru|net|org|edu|gov|it)[\w/-]*\b/?(?!@)"
FILE_ENDINGS = "png|jpg|jpeg|bmp|webp|eps|pdf|apk|mp4"

Rules = tuple[tuple[str, str], ...]  # patterns, and what stands in their places
ADDRESSES: Rules = (
    (rf"\b(?:https?:(?:/{{1,3}}|[a-z0-9%])|{SITE})", ""),
    (rf"\b(?:www:(?:/{{1,3}}|[a-z0-9%])|{SITE})", ""),
)
SYMBOLS: Rules = (
    (r"@\w+\b", ""),  # nicknames
    ("[\u31c0-\u9fff]+", ""),  # CJK strokes, katakana extensions, enclosed letters, ideographs
    (f"[{re.escape(DASHES[0])}{DASHES[1:]}]+", "-"),
    ("[`\u00b4\u00ab\u00bb\u201c\u201d\u00a8]", '"'),
    ("[\u2018\u2019]", "'"),
    ("&quot;?", ""),
    ("&amp", ""),
    (r"\d{1,3}(?:\.\d{1,3}){3}", " "),  # network addresses
    (r"\d:\d\d\s+$", ""),
    (r"\\n", " "),
    (r"#\d{1,3}\b", ""),
    (r"#\d{5,}\b", ""),
    (r"\b\d{6,}\b", ""),
    (rf"\S+\.(?:{FILE_ENDINGS})", ""),
    ("[\"']{2,}", '"'),
    (r"\.{2,}", " "),
    (r"[#®•©™&@·º½¾¿¡§~()\[\]{}|\\/*]+", " "),
    (r"\s+\.\s+", " "),
)
PHRASES: Rules = (
    (r"\b[a-zA-Z]{1,3}\d{3,15}\b", ""),  # article numbers
    (r"\b[a-zA-Z]+\d+[a-zA-Z]+\b", ""),
    (r"\b\d+[a-zA-Z]+\d+\b", ""),
    (r"(?:worldwide\s+)?(?:free\s+)?shipping", ""),
    (r"(?:free\s)?download(?:\sfree)?", ""),
    (r"\bclick\b\s(?:for|on)\s\w+", ""),
    (rf"\b(?:{FILE_ENDINGS})(?:\simages?)?", ""),
    (r"\bpage\s+\d+\b", ""),
    (r"\b\d*[a-zA-Z]+\d+[a-zA-Z]+\d+[a-zA-Z\d]*\b", " "),
    ("\\b\\d+\\.?\\d*[x\u0445\u00d7]\\d+\\.?\\d*\\b", ""),  # sizes
    (r"\b\s+:\s+", ": "),
    (r"(\D[,./])\b", r"\1 "),
    (r"\s+", " "),
    (r"^[\"']([\w\W]+)[\"']$", r"\1"),
    (r"^['_,\-:;]", ""),
    (r"['_,\-:+]$", ""),
    (r"^\.\S+$", ""),
)


class _Text(HTMLParser):
    """Collects what a page would show: no tags, comments, scripts or styles."""

    def __init__(self) -> None:
        super().__init__(convert_charrefs=True)
        self.parts: list[str] = []
        self.hidden = False

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.hidden = tag in ("script", "style")

    def handle_endtag(self, tag: str) -> None:
        self.hidden = False

    def handle_data(self, data: str) -> None:
        if not self.hidden:
            self.parts.append(data)


def clean(caption: str) -> str:
    """Returns a caption as LlamaGen's text encoder sees it: lower case, no markup, addresses,
    nicknames, file names or brackets, plain quotes and dashes. May be empty."""
    import ftfy

    text = caption
    for _ in range(2):
        text = urllib.parse.unquote_plus(text).strip().lower()
        text = _apply(ADDRESSES, text.replace("<person>", "person"))
        parser = _Text()
        parser.feed(text)
        parser.close()
        text = _apply(SYMBOLS, "".join(parser.parts))
        if len(re.findall("[-_]", text)) > 3:  # this-is-my-cute-cat
            text = re.sub("[-_]", " ", text)
        text = html.unescape(html.unescape(ftfy.fix_text(text))).strip()
        text = _apply(PHRASES, text).strip()
    return text


def _apply(rules: Rules, text: str) -> str:
    for pattern, new in rules:
        text = re.sub(pattern, new, text)
    return text
