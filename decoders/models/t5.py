"""flan-t5 caption features with LlamaGen's convention (2406.06525, METHODS 6).

Cleaned caption -> 120 tokens, padded on the right -> encoder -> rolled to left padding, zero on the
padding. Prompts are encoded one at a time, as the released code does, so features do not depend on
the batch. Captions are cleaned as LlamaGen was trained: the rules, made for captions of the web,
are applied in order, twice, also where they eat honest words ("free shipping", "grass.covered").
"""

from __future__ import annotations

import html
import logging
import re
import urllib.parse
from functools import cached_property
from html.parser import HTMLParser
from typing import Any

import torch
from torch import Tensor

from decoders.api import DecoderError, TextFeatures
from decoders.models.loading.checkpoint import Checkpoint, open_checkpoint
from decoders.models.loading.weights import sha256_of

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
    def loaded(self) -> tuple[Any, Any]:
        """The tokenizer and the encoder. Raises DecoderError with what to download."""
        from transformers import AutoTokenizer, T5EncoderModel

        from decoders.models.causal_lm import LOCAL_FILES_ONLY, explain_loading, read_model

        try:
            with explain_loading(self.opened):
                sides = {"padding_side": "right", "truncation_side": "right"}
                tokenizer = AutoTokenizer.from_pretrained(
                    self.opened.folder, **sides, **LOCAL_FILES_ONLY
                )
            how = self.dtype, self.device, T5EncoderModel, DECODER_TENSORS
            encoder = read_model(self.opened, *how)
        except DecoderError as error:
            raise DecoderError(
                f"the T5 text encoder: {error}. Download config.json, tokenizer.json and "
                f"*.safetensors of {T5_HUB_ID} (11 GB) into one folder; set model.text=FOLDER"
            ) from error
        return tokenizer, encoder

    def sha256(self) -> dict[str, str]:
        """Maps file names to the SHA-256 of the weights and the tokenizer."""
        tokenizer = (p for p in self.opened.folder.iterdir() if p.name in TOKENIZER_FILES)
        digests = self.opened.sha256() | {path.name: sha256_of(path) for path in tokenizer}
        return {f"text/{name}": digest for name, digest in digests.items()}

    def check(self, prompts: list[str]) -> None:
        """Raises what `encode` would raise, without encoding: a prompt that is empty, or of which
        cleaning leaves nothing; missing weights. Warns of prompts that will be cut."""
        for prompt in prompts:
            if len(self.loaded[0](self._text(prompt), verbose=False)["input_ids"]) > self.length:
                log.warning("%r is cut at %d tokens, as LlamaGen does", prompt, self.length)

    @torch.inference_mode()
    def encode(self, prompts: list[str]) -> TextFeatures:
        """Encodes prompts to features [B, P, F] float32 on the device, zero on the padding, and
        mask [B, P]. A prompt of more than P tokens is cut, as the released code does. Raises
        DecoderError: no or empty prompts, no weights."""
        if not prompts:
            raise DecoderError("no prompts given: expected at least one caption")
        tokenizer, encoder = self.loaded
        tokens = tokenizer(
            [self._text(prompt) for prompt in prompts],
            max_length=self.length,
            padding="max_length",
            truncation=True,
            return_attention_mask=True,
            return_tensors="pt",
        )
        ids, mask = (tokens[k].to(self.device) for k in ("input_ids", "attention_mask"))  # [B, P]
        rows = [
            encoder(input_ids=ids[i : i + 1], attention_mask=mask[i : i + 1]).last_hidden_state
            for i in range(len(prompts))
        ]
        return left_padded(torch.cat(rows).float(), mask.bool())  # features [B, P, F]

    def _text(self, prompt: str) -> str:
        text = clean(prompt)
        if not text:
            why = "nothing is left of it after LlamaGen's cleaning" if prompt.strip() else "empty"
            raise DecoderError(f"prompt {prompt!r}: {why}; expected a caption in words")
        return text


def left_padded(features: Tensor, mask: Tensor) -> TextFeatures:
    """Moves the valid ones of right-padded features [B, P, F], mask [B, P] bool, to the right end
    in their order; zero elsewhere. A row without padding stays as it is."""
    length = mask.shape[1]
    position = torch.arange(length, device=mask.device) + mask.sum(1, keepdim=True)
    position = position % length  # [B, P], where each position's feature comes from
    rolled = features.gather(1, position[..., None].expand_as(features))  # [B, P, F]
    valid = mask.gather(1, position)  # [B, P]
    return TextFeatures(rolled.masked_fill(~valid[..., None], 0), valid)


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
