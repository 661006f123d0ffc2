"""What lies among files and is none (a named pipe, a socket, a device, a folder) is named: to open
a pipe would wait for ever."""

import os
import socket
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from bench.__main__ import main
from decoders.errors import DecoderError
from decoders.files import open_rgb
from decoders.models.loading.weights import sha256_of


def make_socket(path: Path) -> None:
    with socket.socket(socket.AF_UNIX) as made:
        made.bind(path.name)  # a full path may be longer than a socket's may be


KINDS: dict[str, Callable[[Path], object]] = {
    "a named pipe": os.mkfifo,
    "a socket": make_socket,
    "a device": lambda path: path.symlink_to("/dev/zero"),
    "a folder": Path.mkdir,
}


@pytest.fixture
def pictures(tmp_path, monkeypatch) -> Path:
    """Three pictures and their captions, in the current folder."""
    monkeypatch.chdir(tmp_path)
    for number in range(3):
        grey = np.full((32, 32, 3), 60 * number, np.uint8)
        Image.fromarray(grey).save(tmp_path / f"{number}.png")
    (tmp_path / "captions.txt").write_text("a small red ring on a plain grey background\n" * 4)
    return tmp_path


@pytest.mark.parametrize("kind", KINDS)
def test_what_is_no_file_among_pictures_is_named_before_anything_is_read(kind, pictures, capsys):
    KINDS[kind](pictures / "9.png")
    words = ["evaluate", str(pictures), "metrics=[scenes]", f"captions={pictures}/captions.txt"]
    assert main(words) == 2
    message = capsys.readouterr().err
    assert "9.png is a" in message and kind.removeprefix("a ") in message and "remove" in message


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("read", [open_rgb, sha256_of])
def test_a_reader_of_one_file_says_what_is_there_instead(kind, read, pictures):
    KINDS[kind](pictures / "9.png")
    with pytest.raises(DecoderError, match=rf"9\.png is a .*{kind.removeprefix('a ')}"):
        read(pictures / "9.png")
