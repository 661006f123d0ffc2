"""flan-t5 caption features with LlamaGen's convention (2406.06525, METHODS 6).

Cleaned caption -> 120 tokens, padded on the right -> encoder -> rolled to left padding, zero on the
padding. Prompts are encoded one at a time, as the released code does: then features do not depend
on what else is in the batch, and cached ones equal live ones bit for bit.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from decoders.api import DecoderError, TextFeatures
from decoders.models.checkpoint import open_checkpoint
from decoders.models.repository import WEIGHTS, locate
from decoders.models.text.cleaning import clean
from decoders.models.text.features import left_padded
from decoders.models.weights import checked, dtype_of, sha256_of

log = logging.getLogger(__name__)
HUB = "google/flan-t5-xl"
NEEDED = (("config.json",), ("tokenizer.json", "spiece.model"), WEIGHTS)
ENCODER = ("shared.", "encoder.")  # tensors that are used; the rest are the decoder's


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
        dtype: torch.dtype | str = torch.bfloat16,
    ) -> None:
        self.checkpoint, self.length = checkpoint, length
        self.device = torch.device(device)
        self.dtype = dtype_of(dtype) if isinstance(dtype, str) else dtype
        self.truncated: dict[str, int] = {}  # prompt -> its tokens before it was cut
        self._folder: Path | None = None
        self._loaded: tuple[Any, Any] | None = None

    @property
    def folder(self) -> Path:
        """Where the checkpoint lies; a hub id is fetched. Raises DecoderError."""
        if self._folder is None:
            self._folder = _complete(locate(self.checkpoint, what="T5 text encoder"))
        return self._folder

    def sha256(self) -> dict[str, str]:
        """File name -> SHA-256 of the weights and the tokenizer."""
        kept = (".safetensors", ".bin", ".model")
        paths = [p for p in self.folder.iterdir() if p.suffix in kept or p.name == "tokenizer.json"]
        return {f"text/{p.name}": sha256_of(p) for p in sorted(paths)}

    def check(self, prompts: list[str]) -> None:
        """Raises what `encode` would raise, without encoding: a prompt that is empty, or of which
        cleaning leaves nothing; missing weights."""
        self._load()
        self._tokens(prompts)

    @torch.inference_mode()
    def encode(self, prompts: list[str]) -> TextFeatures:
        """Prompts -> features [B, P, F] float32 on the device, zero on the padding, mask [B, P].

        A prompt of more than P tokens is cut, as the released code does; it is logged once and kept
        in `truncated`. Raises DecoderError: no or empty prompts, no weights.
        """
        encoder = self._load()[1]
        ids, mask = self._tokens(prompts)
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
        tokenizer = self._load()[0]
        counts = [len(ids) for ids in tokenizer(texts, verbose=False)["input_ids"]]
        self._note_long(prompts, counts)
        tokens = tokenizer(
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

    def _note_long(self, prompts: list[str], counts: list[int]) -> None:
        found = dict(zip(prompts, counts, strict=True))
        new = {
            prompt: count
            for prompt, count in found.items()
            if count > self.length and prompt not in self.truncated
        }
        if new:
            first, count = next(iter(new.items()))
            log.warning(
                "%d prompts have more than %d tokens and are cut, as LlamaGen does; the first: %r "
                "(%d tokens)", len(new), self.length, first, count,
            )  # fmt: skip
            self.truncated |= new

    def _load(self) -> tuple[Any, Any]:
        """The tokenizer and the encoder."""
        if self._loaded is None:
            self._loaded = _read(self.folder, self.device, self.dtype)
        return self._loaded


def _complete(folder: Path) -> Path:
    """The folder, if it holds all that is needed. Raises DecoderError with what is missing."""
    present = {p.name for p in folder.iterdir()} if folder.is_dir() else set()
    missing = [" or ".join(names) for names in NEEDED if not present & set(names)]
    if missing:
        raise DecoderError(
            f"the T5 text encoder at {folder} is incomplete: no {'; no '.join(missing)}. Download "
            f"config.json, tokenizer.json and *.safetensors of {HUB} (11 GB) into one folder and "
            "name it (model.text=FOLDER), or run from cached features (prompts=features)"
        )
    return folder


@contextmanager
def _silent() -> Iterator[None]:
    """What goes wrong while loading is raised; the library's log says it a second time, and some of
    its messages cannot be formatted."""
    from transformers.utils import logging as theirs

    before = theirs.get_verbosity()
    theirs.set_verbosity(theirs.CRITICAL)
    try:
        yield
    finally:
        theirs.set_verbosity(before)


def _read(folder: Path, device: torch.device, dtype: torch.dtype) -> tuple[Any, Any]:
    """The tokenizer and the encoder. Code that a folder brings along (`auto_map`) is never run."""
    from safetensors import SafetensorError
    from transformers import AutoTokenizer, T5EncoderModel

    # What transformers would convert or follow in silence: weights of another kind, files that hold
    # none, an index that names files elsewhere.
    opened = open_checkpoint(str(folder), what="T5 text encoder", digests=False)
    for name in opened.index:
        if name.startswith(ENCODER):
            opened.read(name)  # mapped, so that only its dtype costs anything
    own: dict[str, Any] = {"local_files_only": True, "trust_remote_code": False}
    try:
        with _silent():
            tokenizer = AutoTokenizer.from_pretrained(
                folder, padding_side="right", truncation_side="right", **own
            )
            loaded: Any = T5EncoderModel.from_pretrained(
                folder, torch_dtype=dtype, output_loading_info=True, **own
            )
    except (OSError, ValueError, ImportError, RuntimeError, SafetensorError) as error:
        reason = (str(error).strip() or type(error).__name__).splitlines()[0]
        raise DecoderError(
            f"the T5 text encoder at {folder} cannot be read ({reason}); it is damaged or of "
            f"another kind: download {HUB} again"
        ) from error
    encoder, missing = loaded[0], loaded[1]["missing_keys"]
    if missing:
        raise DecoderError(
            f"the T5 encoder at {folder} lacks {len(missing)} tensors, such as {min(missing)}; "
            f"download {HUB} again"
        )
    for name, parameter in encoder.named_parameters():
        checked(parameter, name, folder)
    return tokenizer, encoder.to(device).eval().requires_grad_(False)
