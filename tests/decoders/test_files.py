"""Picture files: every mode of Pillow is read right or refused by name; damaged ones are named."""

import io
import struct
import zlib
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from PIL import Image, PngImagePlugin

from decoders.api import DecoderError
from decoders.files import READABLE_MODES, is_picture, open_rgb, read_items, read_object
from decoders.training.states import read_picture
from metrics.images import ImageSet, centre_crop

GREY = np.tile(np.arange(64, dtype=np.uint8) * 4, (64, 1))  # [64, 64]
RAMP = Image.fromarray(GREY)
READERS: dict[str, Callable[[Path], object]] = {
    "measured": lambda file: ImageSet((file, file), centre_crop(64)).part(0, 2),
    "trained on": lambda file: read_picture(file, 64),
}


@pytest.mark.parametrize("mode", [m for m in READABLE_MODES if m not in ("1", "PA", "HSV", "RGBX")])
def test_a_grey_ramp_is_the_same_in_every_mode(tmp_path: Path, mode: str) -> None:
    """As a PNG where that has the mode, else as a TIFF, whatever its name."""
    file = tmp_path / "a.png"
    RAMP.convert(mode).save(file, "PNG" if mode in ("L", "LA", "P", "RGB", "RGBA") else "TIFF")
    with Image.open(file) as opened:
        assert opened.mode == mode
    pixels = np.asarray(open_rgb(file)).astype(int)
    assert np.abs(pixels - GREY[..., None]).max() <= 1


@pytest.mark.parametrize("order", ["<u2", ">u2"])
def test_sixteen_bits_of_grey_are_the_eight_upper_ones(tmp_path: Path, order: str) -> None:
    wide = (GREY.astype(np.uint16) * 257).astype(order)
    kind = "PNG" if order == "<u2" else "TIFF"
    Image.fromarray(wide).save(tmp_path / "a.png", kind)
    assert np.array_equal(np.asarray(open_rgb(tmp_path / "a.png"))[..., 0], GREY)


@pytest.mark.parametrize("mode", ["F", "I", "LAB"])
def test_a_mode_without_a_known_range_is_refused_by_name(tmp_path: Path, mode: str) -> None:
    file = tmp_path / "a.png"
    (Image.new("LAB", (64, 64)) if mode == "LAB" else RAMP.convert(mode)).save(file, "TIFF")
    for read in READERS.values():
        with pytest.raises(DecoderError, match=rf"a\.png has Pillow's mode {mode}, .* RGB of 8"):
            read(file)


def chunk(name: bytes, content: bytes) -> bytes:
    body = name + content
    return struct.pack(">I", len(content)) + body + struct.pack(">I", zlib.crc32(body))


def png(side: int, *chunks: bytes, pixels: bytes = bytes(64 * 193)) -> bytes:
    head = chunk(b"IHDR", struct.pack(">IIBBBBB", side, side, 8, 2, 0, 0, 0))
    parts = *chunks, chunk(b"IDAT", zlib.compress(pixels)), chunk(b"IEND", b"")
    return b"\x89PNG\r\n\x1a\n" + head + b"".join(parts)


def encoded(kind: str) -> bytes:
    file = io.BytesIO()
    RAMP.save(file, kind)
    return file.getvalue()


BROKEN = {
    "no picture": b"nothing",
    "empty": b"",
    "a chunk that is none": png(64, b"\0\0\0\x09\xab\xda\xfb\x81" + bytes(40)),  # SyntaxError
    "400 million pixels": png(20_000),  # DecompressionBombError
    "a header of no size": png(64)[:20],
    "half of a PNG": encoded("PNG")[:-200],
    "half of a JPEG": encoded("JPEG")[:-200],
    "half of a TIFF": encoded("TIFF")[:-30],
    "pixels that are not compressed": png(64).replace(b"x\x9c", b"xx"),
}


@pytest.mark.parametrize("reader", READERS)
@pytest.mark.parametrize("name", BROKEN)
def test_a_picture_that_cannot_be_read_is_named(tmp_path: Path, name: str, reader: str) -> None:
    file = tmp_path / "1.png"
    file.write_bytes(BROKEN[name])
    with pytest.raises(DecoderError, match=r"1\.png is not a readable image: ."):
        READERS[reader](file)


@pytest.mark.parametrize("compressed", [False, True])
def test_a_picture_with_megabytes_of_metadata_is_read(tmp_path: Path, compressed: bool) -> None:
    """As drawing programs write whole workflows."""
    info = PngImagePlugin.PngInfo()
    info.add_text("workflow", "x" * 3_000_000, zip=compressed)
    file = tmp_path / "a.png"
    RAMP.save(file, pnginfo=info)
    assert np.array_equal(np.asarray(open_rgb(file))[..., 0], GREY)


def test_hidden_files_are_no_pictures() -> None:
    names = ["1.png", "a.JPG", "b.webp", ".1.png", "._1.png", ".png", "a.txt"]
    assert [name for name in names if is_picture(Path(name))] == names[:3]


TWICE = '{"a": 1, "b": {"x": 1, "y": 2, "x": 3}}'


@pytest.mark.parametrize("ending", [".json", ".jsonl"])
def test_a_key_that_stands_twice_is_named(tmp_path: Path, ending: str) -> None:
    path = tmp_path / f"a{ending}"
    path.write_text(TWICE)
    for read in (read_object, lambda p: read_items(p, "caption", [ending], "")):
        with pytest.raises(DecoderError, match="names x twice; keep one"):
            read(path)
