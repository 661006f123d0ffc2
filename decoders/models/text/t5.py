"""flan-t5 caption features with LlamaGen's convention (2406.06525, METHODS 6).

Cleaned caption -> 120 tokens, padded on the right -> encoder -> rolled to left padding, zero on the
padding. Prompts are encoded one at a time, as the released code does: then features do not depend
on what else is in the batch.
"""

from __future__ import annotations

import logging
from functools import cached_property
from typing import Any

import torch
from torch import Tensor

from decoders.api import DecoderError, TextFeatures
from decoders.models.checkpoint import Checkpoint, open_checkpoint
from decoders.models.text.cleaning import clean
from decoders.models.weights import sha256_of

log = logging.getLogger(__name__)
HUB = "google/flan-t5-xl"
UNREAD = ("decoder.", "lm_head.")  # tensors of the half that writes text
TOKENIZER = ("tokenizer.json", "spiece.model")


class T5Encoder:
    """`decoders.api.TextEncoder` over a T5 encoder; nothing is loaded before it is needed.

    checkpoint: a folder in transformers' layout (config.json, tokenizer.json, weights) or a hub id.
    length: P. dtype: the encoder's; features are float32 in any case.
    """

    def __init__(
        self,
        checkpoint: str = HUB,
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

        from decoders.models.pretrained import LOCAL, loading, read_model

        try:
            with loading(self.opened):
                tokenizer = AutoTokenizer.from_pretrained(
                    self.opened.folder, padding_side="right", truncation_side="right", **LOCAL
                )
            encoder = read_model(self.opened, self.dtype, self.device, T5EncoderModel, UNREAD)
        except DecoderError as error:
            raise DecoderError(
                f"the T5 text encoder: {error}. Download config.json, tokenizer.json and "
                f"*.safetensors of {HUB} (11 GB) into one folder and name it (model.text=FOLDER)"
            ) from error
        return tokenizer, encoder

    def sha256(self) -> dict[str, str]:
        """File name -> SHA-256 of the weights and the tokenizer."""
        words = {p.name: sha256_of(p) for p in self.opened.folder.iterdir() if p.name in TOKENIZER}
        return {f"text/{name}": digest for name, digest in (self.opened.sha256() | words).items()}

    def check(self, prompts: list[str]) -> None:
        """Raises what `encode` would raise, without encoding: a prompt that is empty, or of which
        cleaning leaves nothing; missing weights. Warns of prompts that will be cut."""
        for prompt in prompts:
            if len(self.loaded[0](self._text(prompt), verbose=False)["input_ids"]) > self.length:
                log.warning("%r is cut at %d tokens, as LlamaGen does", prompt, self.length)

    @torch.inference_mode()
    def encode(self, prompts: list[str]) -> TextFeatures:
        """Prompts -> features [B, P, F] float32 on the device, zero on the padding, mask [B, P].

        A prompt of more than P tokens is cut, as the released code does. Raises DecoderError: no or
        empty prompts, no weights.
        """
        ids, mask = self._tokens(prompts)
        encoder = self.loaded[1]
        rows = [
            encoder(
                input_ids=ids[row : row + 1].to(self.device),
                attention_mask=mask[row : row + 1].to(self.device),
            ).last_hidden_state
            for row in range(len(prompts))
        ]
        features = torch.cat(rows).float()  # [B, P, F]
        return left_padded(features, mask.to(self.device).bool())

    def _tokens(self, prompts: list[str]) -> tuple[Tensor, Tensor]:
        """Token ids and mask [B, P] int64, right-padded."""
        if not prompts:
            raise DecoderError("no prompts given: expected at least one caption")
        texts = [self._text(prompt) for prompt in prompts]
        tokens = self.loaded[0](
            texts,
            max_length=self.length,
            padding="max_length",
            truncation=True,
            return_attention_mask=True,
            return_tensors="pt",
        )
        return tokens["input_ids"], tokens["attention_mask"]

    def _text(self, prompt: str) -> str:
        text = clean(prompt)
        if not text:
            why = "nothing is left of it after LlamaGen's cleaning" if prompt.strip() else "empty"
            raise DecoderError(f"prompt {prompt!r}: {why}; expected a caption in words")
        return text


def left_padded(features: Tensor, mask: Tensor) -> TextFeatures:
    """Right-padded features [B, P, F], mask [B, P] bool -> the same with the valid ones at the
    right end in their order, zero elsewhere. A row without padding stays as it is."""
    length = mask.shape[1]
    place = torch.arange(length, device=mask.device) + mask.sum(1, keepdim=True)
    place = place % length  # [B, P], where each position's feature comes from
    rolled = features.gather(1, place[..., None].expand_as(features))  # [B, P, F]
    valid = mask.gather(1, place)  # [B, P]
    return TextFeatures(rolled.masked_fill(~valid[..., None], 0), valid)
