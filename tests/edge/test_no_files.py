"""What lies among files and is none (a named pipe, a socket, a device, a folder) is named: to open
a pipe would wait for ever. Folders whose names are odd."""

import json
import os
import shutil
import socket
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from bench.__main__ import main
from bench.analyse.analyse import load, pooled
from bench.commands.evaluate import EvaluateConfig, write_csv
from decoders.errors import DecoderError
from decoders.files import open_rgb
from decoders.models.loading.weights import sha256_of
from metrics.networks import Weights
from metrics.papers import Measurement
from metrics.scores import Score
from tests.bench.report.synthetic import DECODERS, write_run


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


# ---- a folder whose name has a byte that is no UTF-8, as old archives and some mounts have -------


@pytest.fixture
def odd(tmp_path: Path) -> Path:
    folder = tmp_path / os.fsdecode(b"caf\xe9")
    folder.mkdir()
    return folder


def test_a_run_in_a_folder_of_no_utf_8_is_read(odd):
    write_run(odd.parent / "run", DECODERS[:1], prompts=2)
    shutil.move(odd.parent / "run", odd / "run")
    assert "ar" in {entry.name for entry in load(odd / "run").entries}


def test_replicates_in_a_folder_of_no_utf_8_are_pooled_with_their_pictures(odd):
    write_run(odd.parent / "0", DECODERS[:1], prompts=2)
    for number in (0, 1):
        shutil.copytree(odd.parent / "0", odd / str(number))
        study = json.loads((odd / str(number) / "study.json").read_text())
        study["config"]["replicate"] = number
        (odd / str(number) / "study.json").write_text(json.dumps(study))
    run = pooled([odd / "0", odd / "1"], odd)
    assert all(Path(path).is_file() for path in run.rows.image if path) and run.rows.image.any()


def test_the_figures_of_its_pictures_are_written_with_the_name_escaped(odd, tmp_path):
    weights, score = Weights(tmp_path / "clip.pt", "0" * 64), Score(30.0, 29.0, 31.0)
    figure = Measurement("clip", "score", "CLIP é", score, 4, 0, "", weights)
    write_csv(tmp_path / "x.csv", EvaluateConfig(images=odd), [figure], "cpu")
    text = (tmp_path / "x.csv").read_text(encoding="utf-8")
    assert "caf\\udce9" in text and "CLIP é" in text
