"""Text features in a file, so that the text encoder is loaded once, elsewhere, or not at all.

Layout (safetensors): `features` [n, P, F] float, `mask` [n, P], and optionally the prompts, as the
metadata `prompt` (or `prompts`), a JSON list, or as a uint8 tensor `prompt` [n, bytes] of UTF-8,
zero-padded. Metadata `id` and `category` are lists of the same length. The convention is left
padding, as the encoders return it: the last valid feature of a caption stands right before the
first code (METHODS 6). Right-padded rows are rolled when they are read.
"""

from __future__ import annotations

import copy
import json
import logging
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from decoders.api import DecoderError, NumericalError, TextFeatures
from decoders.documents import one_line
from decoders.errors import did_you_mean
from decoders.models.weights import opened_file, require_weights, sha256_of

log = logging.getLogger(__name__)
FLOATS = ("F64", "F32", "F16", "BF16")


class FeatureCache:
    """`decoders.api.TextEncoder` over a file. Features are read row by row from the mapped file.

    prompts: n names, what `encode` takes: the prompts, or features:00000, ... where the file does
    not hold any. ids, categories: n texts each, or empty lists. Raises DecoderError: no such file,
    another layout, contradictory shapes, padding that is on neither side.
    """

    def __init__(self, path: str | Path, device: torch.device | str = "cpu") -> None:
        self.path, self.device = Path(path).expanduser(), torch.device(device)
        if not self.path.is_file():
            raise DecoderError(
                f"no feature file at {self.path}: expected a .safetensors file with `features` "
                "[n, P, F] and `mask` [n, P] (docs/official_models.md)"
            )
        require_weights(self.path)
        self._open = ExitStack()  # closed with this object
        self._file = self._open.enter_context(opened_file(self.path, "copy or write it again"))
        (self.count, self.length, self.width), mask = self._tensors()
        self.mask = mask  # [n, P] bool
        self._right = right_padded_rows(mask, str(self.path))
        if bool(self._right.any()):
            log.warning(
                "%s: %d of %d rows are padded on the right; they are rolled to left padding",
                self.path, int(self._right.sum()), self.count,
            )  # fmt: skip
        metadata = self._file.metadata() or {}
        found = self._prompts(metadata)
        self.named = found is not None
        self.prompts = found or [f"features:{row:05d}" for row in range(self.count)]
        self.ids = self._list(metadata, "id") or []
        self.categories = self._list(metadata, "category") or []
        self._rows: dict[str, int] = {}
        for row, prompt in enumerate(self.prompts):
            first = self._rows.setdefault(prompt, row)
            if first != row:
                self._same(first, row)

    def _tensors(self) -> tuple[tuple[int, int, int], Tensor]:
        """The shape of the features and the mask [n, P] bool."""
        names = set(self._file.keys())
        if not {"features", "mask"} <= names:
            raise DecoderError(
                f"{self.path}: expected tensors `features` and `mask`, found {sorted(names)}"
            )
        part, mask = self._file.get_slice("features"), self._file.get_tensor("mask")
        shape, kind = tuple(part.get_shape()), str(part.get_dtype())
        odd = len(shape) != 3 or 0 in shape or kind not in FLOATS
        if odd or tuple(mask.shape) != shape[:2]:
            raise DecoderError(
                f"{self.path}: expected `features` [n, P, F] float and `mask` [n, P], found "
                f"{list(shape)} {kind} and {list(mask.shape)}"
            )
        return shape, mask > 0.5 if mask.is_floating_point() else mask != 0

    def _prompts(self, metadata: dict[str, str]) -> list[str] | None:
        for key in ("prompt", "prompts"):
            found = self._list(metadata, key)
            if found is not None:
                return [one_line(prompt) for prompt in found]
        if "prompt" not in self._file.keys():  # noqa: SIM118  not a mapping
            return None
        rows = self._file.get_tensor("prompt")
        if rows.dtype != torch.uint8 or rows.dim() != 2 or len(rows) != self.count:
            raise DecoderError(
                f"{self.path}: expected `prompt` [{self.count}, bytes] uint8, found "
                f"{list(rows.shape)} {rows.dtype}"
            )
        try:
            return [one_line(bytes(row.tolist()).rstrip(b"\0").decode()) for row in rows]
        except UnicodeDecodeError as error:
            raise DecoderError(f"{self.path}: `prompt` is not UTF-8 ({error})") from error

    def _list(self, metadata: dict[str, str], key: str) -> list[str] | None:
        """A list of texts of the metadata; of one row the bare text may stand instead."""
        if key not in metadata:
            return None
        try:
            found: Any = json.loads(metadata[key])
        except json.JSONDecodeError:
            found = metadata[key]
        if self.count == 1 and not isinstance(found, list):
            found = [metadata[key] if not isinstance(found, str) else found]
        right = isinstance(found, list) and {type(f) for f in found} == {str}
        if not right or len(found) != self.count:
            raise DecoderError(
                f"{self.path}: the metadata `{key}` must be a JSON list of {self.count} texts, "
                f"found {metadata[key][:60]!r}"
            )
        return found

    def to(self, device: torch.device | str) -> FeatureCache:
        """The same file, its features handed out on another device: not opened again, so that what
        was said of it is said once."""
        moved = copy.copy(self)
        moved.device = torch.device(device)
        return moved

    def sha256(self) -> dict[str, str]:
        """File name -> SHA-256."""
        return {f"text/{self.path.name}": sha256_of(self.path)}

    def check(self, prompts: list[str]) -> None:
        """Raises DecoderError where `encode` would not find a prompt."""
        for prompt in prompts:
            self._row(prompt)

    def encode(self, prompts: list[str]) -> TextFeatures:
        """Prompts -> features [B, P, F] float32 on the device, zero on the padding, mask [B, P]
        bool. Raises DecoderError for a prompt that the file does not hold, NumericalError for
        features that are not finite."""
        if not prompts:
            raise DecoderError("no prompts given: expected at least one")
        rows = [self._row(prompt) for prompt in prompts]
        parts = [self._features(row) for row in rows]
        features = torch.cat([part.features for part in parts])  # [B, P, F]
        mask = torch.cat([part.mask for part in parts])  # [B, P]
        if not bool(features.isfinite().all()):
            bad = rows[int((~features.isfinite()).nonzero()[0, 0])]
            raise NumericalError(f"{self.path}: row {bad} holds NaN or infinity; encode it again")
        return TextFeatures(features.to(self.device), mask.to(self.device))

    def _features(self, row: int) -> TextFeatures:
        """One row [1, P, F] float32, left-padded."""
        features: Tensor = self._file.get_slice("features")[row : row + 1].float()
        mask = self.mask[row : row + 1]
        if bool(self._right[row]):
            return left_padded(features, mask)
        return TextFeatures(features.masked_fill(~mask[..., None], 0), mask)

    def _row(self, prompt: str) -> int:
        if prompt in self._rows:
            return self._rows[prompt]
        hint = did_you_mean(prompt, self.prompts) or f"; it begins with {self.prompts[0]!r}."
        raise DecoderError(
            f"{self.path} has no features of the prompt {prompt!r} among its {self.count}{hint} "
            "Use prompts=features with this file, or add the prompt to it"
        )

    def _same(self, first: int, row: int) -> None:
        one, other = self._features(first), self._features(row)
        if not (torch.equal(one.features, other.features) and torch.equal(one.mask, other.mask)):
            raise DecoderError(
                f"{self.path}: rows {first} and {row} have the same prompt "
                f"({self.prompts[row]!r}) and other features; name them apart"
            )


def left_padded(features: Tensor, mask: Tensor) -> TextFeatures:
    """Right-padded features [B, P, F], mask [B, P] bool -> the same with the valid ones at the
    right end in their order, zero elsewhere. A row without padding stays as it is."""
    length = mask.shape[1]
    place = torch.arange(length, device=mask.device) + mask.sum(1, keepdim=True)
    place = place % length  # [B, P], where each position's feature comes from
    rolled = features.gather(1, place[..., None].expand_as(features))  # [B, P, F]
    valid = mask.gather(1, place)  # [B, P]
    return TextFeatures(rolled.masked_fill(~valid[..., None], 0), valid)


def right_padded_rows(mask: Tensor, source: str) -> Tensor:
    """Which rows of a mask [n, P] bool are padded on the right, [n] bool.

    Raises DecoderError for a row without valid positions or with padding in its middle or on both
    sides; `source` names the mask.
    """
    count = mask.sum(1)  # [n]
    place = torch.arange(mask.shape[1], device=mask.device)
    left = (mask == (place >= mask.shape[1] - count[:, None])).all(1)
    right = (mask == (place < count[:, None])).all(1)
    wrong = (count == 0) | ~(left | right)
    if bool(wrong.any()):
        row = int(wrong.nonzero()[0, 0])
        raise DecoderError(
            f"{source}: row {row} of the mask must be one run of valid positions at its right or "
            f"left end, found {int(count[row])} valid of {mask.shape[1]} in another order"
        )
    return right & ~left
