"""Supplies captions and codes for training: pictures here, embedded scenes in
`decoders.tiny.scenes.source`.

A source (`decoders.training.states.Source`) is a pure function of an index, so that a run that
resumes, or shares its work among processes, sees what an uninterrupted one sees.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from reprlib import repr as brief

import numpy as np
import torch
from PIL import Image, ImageOps
from torch import Tensor

from decoders.api import DecoderError, ImageModel
from decoders.documents import one_line, read_items, require_readable
from decoders.image_files import HIDDEN, is_picture, open_rgb
from decoders.training.states import Images


def encode_pictures(model: ImageModel, pictures: Tensor) -> Tensor:
    """Encodes pictures [B, 3, H, W] float32 in [0, 1] to codes [B, L] int64.

    Raises DecoderError where the tokenizer only decodes, or the pictures are of another size.
    """
    encode = getattr(model.tokenizer, "encode", None)
    if encode is None:
        raise DecoderError(
            f"the tokenizer of {model.name!r} cannot encode pictures "
            f"({type(model.tokenizer).__name__}); train on codes from a source of your own: "
            "data._target_=module.Class (see decoders/training/states.py)"
        )
    codes: Tensor = encode(pictures.to(model.device))
    if codes.shape[1] != model.target.length:
        raise DecoderError(
            f"pictures of {pictures.shape[-1]} pixels are {codes.shape[1]} codes, the target "
            f"draws {model.target.length}; set data.size to the model's picture size"
        )
    return codes


class Listed:
    """A finite source of `count` items, of which a share, at least one, is held out at random.
    make: numbers of items -> their images. Raises DecoderError."""

    def __init__(
        self, count: int, held_out: float, seed: int, make: Callable[[list[int]], Images]
    ) -> None:
        if count < 2 or not 0 < held_out < 1:
            raise DecoderError(
                f"expected at least 2 images and 0 < held_out < 1, found {count} and {held_out}"
            )
        order = torch.randperm(count, generator=torch.Generator().manual_seed(seed)).tolist()
        self.make, self.valid = make, max(1, round(count * held_out))
        self.parts = {"train": order[self.valid :], "valid": order[: self.valid]}
        self.train = count - self.valid

    def images(self, split: str, indices: Sequence[int]) -> Images:
        return self.make([self.parts[split][i] for i in indices])


def pictures(
    model: ImageModel, path: str, captions: str, size: int, held_out: float = 0.05, seed: int = 0
) -> Listed:
    """Reads pictures of a folder with captions, and encodes them by the model's tokenizer.

    captions: a .csv, .tsv or .json (a list of mappings) with `image`, a file name in the folder,
    and `caption`. Pictures are centre-cropped to a square and resized to `size` pixels (bicubic).
    """
    items = read_captions(Path(path), Path(captions))

    def make(numbers: list[int]) -> Images:
        files, words = zip(*(items[n] for n in numbers), strict=True)
        codes = encode_pictures(model, torch.stack([read_picture(f, size) for f in files]))
        return Images(model.text.encode(list(words)).to(model.device), codes)

    return Listed(len(items), held_out, seed, make)


def read_captions(folder: Path, captions: Path) -> list[tuple[Path, str]]:
    """Reads (picture, caption) of every row of the file. Raises DecoderError: no such file, no such
    column, a picture that is not there, an empty caption."""
    hint = "set data.captions to a .csv, .tsv or .json"
    rows = read_items(captions, "caption", (".csv", ".tsv", ".json"), hint)
    if not isinstance(rows, list):
        raise DecoderError(f"{captions} must hold a list of rows, found {type(rows).__name__}")
    pairs = []
    for number, row in enumerate(rows, start=1):
        if not isinstance(row, dict) or not row.get("image") or not row.get("caption"):
            raise DecoderError(
                f"{captions}: row {number} needs `image` and `caption`, found {brief(row)}"
            )
        path = folder / str(row["image"])
        if not is_picture(path) or not path.is_file():
            why = f" ({HIDDEN})" if path.name.startswith(".") else ""
            raise DecoderError(f"{captions}: row {number} names {path}, which is no picture{why}")
        caption = one_line(str(row["caption"]))
        require_readable(caption, f"{captions}: the caption of row {number}")
        pairs.append((path, caption))
    return pairs


def read_picture(path: Path, size: int) -> Tensor:
    """Reads [3, size, size] float32 in [0, 1], centre-cropped to a square."""
    square = ImageOps.fit(open_rgb(path), (size, size), Image.Resampling.BICUBIC)
    return torch.from_numpy(np.asarray(square, dtype=np.float32) / 255).permute(2, 0, 1)
