"""Picture files: which files are pictures, and their pixels as RGB of 8 bits.

Why one place: pictures to measure and pictures to train on are the same kinds of file. Pillow
clips 16-bit grey to white without a word, and its errors are of a dozen types.
"""

from __future__ import annotations

import struct
import zlib
from pathlib import Path

import numpy as np
from PIL import Image, PngImagePlugin

from decoders.api import DecoderError

SUFFIXES = (".png", ".jpg", ".jpeg", ".webp", ".bmp")
HIDDEN = "names that begin with a dot are of hidden files (macOS makes ._1.png), not of pictures"
# Modes that Pillow converts to RGB. An alpha channel is left out, as clean-fid does.
CONVERTED = ("1", "L", "LA", "P", "PA", "RGB", "RGBA", "RGBX", "CMYK", "YCbCr", "HSV")
# What Pillow raises for damaged files, besides OSError, and for pictures that are too large.
DAMAGED = (
    OSError, SyntaxError, ValueError, LookupError, TypeError, AttributeError, ArithmeticError,
    RuntimeError, MemoryError, struct.error, zlib.error, Image.DecompressionBombError,
)  # fmt: skip
# The most text that a PNG may hold: the prompts and settings of a drawing program are more than
# Pillow's 1 MB for one of them, and are not read here.
PngImagePlugin.MAX_TEXT_CHUNK = PngImagePlugin.MAX_TEXT_MEMORY


def is_picture(file: Path) -> bool:
    """Tells whether a file is a picture, by its name."""
    return file.suffix.lower() in SUFFIXES and not file.name.startswith(".")


def open_rgb(file: Path) -> Image.Image:
    """Reads a picture file as RGB. Raises DecoderError where it cannot be read, and for a mode that
    says nothing of its range or that Pillow does not convert."""
    try:
        with Image.open(file) as image:
            if image.mode in CONVERTED:
                return image.convert("RGB")
            if image.mode.startswith("I;16") or (image.mode == "I" and image.format == "PNG"):
                high = np.asarray(image) >> 8  # of 16 bits, as Pillow reads 16-bit colours
                return Image.fromarray(high.astype(np.uint8)).convert("RGB")
            mode = image.mode
    except DAMAGED as error:
        reason = str(error).rstrip(".") or type(error).__name__
        raise DecoderError(
            f"{file} is not a readable image: {reason}; make it again, or remove it"
        ) from error
    raise DecoderError(
        f"{file} has Pillow's mode {mode}, which is not read; expected {', '.join(CONVERTED)} or "
        "16-bit grey: save it as RGB of 8 bits"
    )
