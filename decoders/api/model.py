"""What a model is: a target, its text encoder and its tokenizer; and how a contract's optional
members are filled in."""

from __future__ import annotations

from abc import abstractmethod
from dataclasses import dataclass, field
from math import isqrt
from typing import Any, Protocol

import torch
from torch import Tensor

from decoders.api.data import Sampling, TextFeatures
from decoders.errors import DecoderError


def completed(part: Any, contract: Any) -> Any:
    """`part` with the values and methods of `contract` that it does not have itself. Called once,
    where a part is put to use: after that its members are read without asking whether it has
    them."""
    for name, value in vars(contract).items():
        optional = not name.startswith("_") and not getattr(value, "__isabstractmethod__", False)
        has = hasattr(type(part), name) or hasattr(part, name)  # a property is not evaluated
        if optional and not has:
            bound = value.__get__(part) if hasattr(value, "__get__") else value
            object.__setattr__(part, name, bound)  # the part may be frozen
    return part


def fits(part: Any, contract: Any) -> bool:
    """Whether `part` has every method that `contract` demands: asked where parts of several
    contracts may stand, or a user's own object."""
    members = vars(contract).items()
    demanded = [n for n, value in members if getattr(value, "__isabstractmethod__", False)]
    return all(hasattr(part, name) for name in demanded)


class TextEncoder(Protocol):
    @abstractmethod
    def encode(self, prompts: list[str]) -> TextFeatures:
        """Raises DecoderError on an empty, over-long or unknown-language prompt."""

    def check(self, prompts: list[str]) -> object:
        """Raises what `encode` raises; without encoding, where that takes long."""
        return self.encode(prompts)

    def sha256(self) -> dict[str, str]:
        """File name -> hash, of files that are loaded apart from the model."""
        return {}


class ImageTokenizer(Protocol):
    missing: bool = False  # whether it cannot `decode`
    raw_codebook: Tensor | None = None  # [V, C], rows as they are stored

    @property
    @abstractmethod
    def codebook(self) -> Tensor:
        """[V, C] float32."""

    @abstractmethod
    def decode(self, codes: Tensor) -> Tensor:
        """[B, L] int64 -> images [B, 3, H, W] float32 in [0, 1]."""

    def encode(self, images: Tensor) -> Tensor:
        """Images [B, 3, H, W] float32 in [0, 1] -> codes [B, L] int64, to train on. Raises
        DecoderError where the tokenizer only decodes."""
        raise DecoderError(
            f"the tokenizer cannot encode pictures ({type(self).__name__}); train on codes from a "
            "source of your own: data._target_=module.Class (see decoders/training/states.py)"
        )


class Target(Protocol):
    """A decoder-only model over VQ codes with a text prefix; rows and caches are the caller's."""

    vocab_size: int
    width: int
    length: int  # L
    prefix: int  # P
    barred: Tensor | None  # [W, V] bool: codes that may not stand at a position n, row n % W
    config: Any = None  # a decoders.models.nets.shape.TransformerConfig, or one with the same names
    layers: Any = None  # its layers, a module
    output: Any = None  # its head, a module
    tok_embeddings: Any = None  # the embedding of its tokens, a module
    # A decoders.models.nets.grouped.Schedule, of a target that predicts several codes per forward.
    schedule: Any = None

    def grid(self) -> tuple[int, int]:
        """Height and width of an image in codes, structural ones included: position n stands in row
        n // width. As it is here: square, and with `barred` one position more in a row (a row
        end)."""
        width = isqrt(self.length) + (self.barred is not None)
        return -(-self.length // width), width

    @abstractmethod
    def new_cache(self, rows: int, capacity: int) -> Any:
        """A preallocated `decoders.cache.KVCache` of `capacity` positions per row."""

    @abstractmethod
    def prefill(self, text: TextFeatures, guidance_rows: int, cache: Any) -> Tensor:
        """Runs the prefix; returns its final hidden states [R, P, D]. Those of padded positions may
        be anything finite: no valid position sees them."""

    @abstractmethod
    def forward_codes(
        self, codes: Tensor, positions: Tensor, slots: Tensor, mask: Tensor, cache: Any
    ) -> Tensor:
        """One forward over T codes a row -> final hidden states [R, T, D] (normed, head-ready).

        codes [R, T] int64; positions [R, T] int64, the position of each code in the image (0 is the
        first); slots [R, T] int64, cache positions written; mask [R, T, S], of either kind of
        `decoders.cache`: at which cache positions a query may look (its own slot included).
        """

    @abstractmethod
    def logits(self, hidden: Tensor) -> Tensor:
        """[..., D] -> [..., V] in the model's dtype, or in float32."""

    def token_ids(self, codes: Tensor) -> Tensor:
        """Codes -> rows of the embedding, same shape."""
        return codes


@dataclass(frozen=True)
class ImageModel:
    """A target with everything around it: what `model=` selects. Built by a loader function.

    ``codebook`` is the latent space in which neighbours are measured (the tokenizer's own metric:
    rows are L2-normalised where the tokenizer normalises).
    """

    name: str
    target: Target
    text: Any  # a TextEncoder
    tokenizer: Any  # an ImageTokenizer
    sampling: Sampling  # the model's usual settings
    device: torch.device
    dtype: torch.dtype
    weights_sha256: dict[str, str]  # file name -> hash of what was loaded
    drafters: dict[str, Any] = field(default_factory=dict)  # name -> path or state of its weights
    targets: dict[str, Any] = field(default_factory=dict)  # name -> another Target of these codes
    execution: Any = None  # a decoders.api.Execution; None is eager

    def __post_init__(self) -> None:
        for target in (self.target, *self.targets.values()):
            completed(target, Target)
        completed(self.text, TextEncoder)
        completed(self.tokenizer, ImageTokenizer)

    @property
    def mode(self) -> str:
        """The execution's name."""
        return "eager" if self.execution is None else str(self.execution.name)

    @property
    def codebook(self) -> Tensor:
        """[V, C] float32."""
        codebook: Tensor = self.tokenizer.codebook
        return codebook

    @property
    def draws(self) -> bool:
        """Whether codes can be made pictures: a model may be loaded without its tokenizer."""
        return not self.tokenizer.missing
