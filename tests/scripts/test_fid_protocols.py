"""`python -m scripts.fid_protocols`: the same pictures, two ways to the network's input."""

import csv
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from metrics.features import Extractor
from metrics.preparations import RESIZINGS
from scripts.fid_protocols import Network, gap_of, main
from tests.metrics.made import fid


def pictures(folder: Path, count: int, side: int, seed: int) -> Path:
    """Fine checks of random colours: what antialiasing is for."""
    folder.mkdir()
    rng = np.random.default_rng(seed)
    for n in range(count):
        grid = rng.integers(0, 256, (side, side + n % 3, 3), dtype=np.uint8)
        Image.fromarray(grid).save(folder / f"{n}.png")
    return folder


def tiles(pixels: torch.Tensor) -> torch.Tensor:
    return torch.nn.functional.adaptive_avg_pool2d(pixels, 1).flatten(1) + pixels[:, :, 0, 0]


class Tiles(Extractor):
    size = 16

    def of_pixels(self, pixels: torch.Tensor) -> torch.Tensor:
        return tiles(pixels)


TILES = Network("tiles", "abc", Tiles())


def test_the_gap_is_the_difference_of_the_two_figures_and_is_paired():
    generator = torch.Generator().manual_seed(0)
    mine, real = (
        torch.randint(0, 256, (40, 3, 64, 64), generator=generator, dtype=torch.uint8)
        for _ in range(2)
    )
    found = gap_of(mine, real, TILES, ("clean", "bilinear"), batch=16)
    for scored in (found.first, found.second):
        resize = RESIZINGS[scored.protocol].apply
        expected = fid(tiles(resize(mine, 16)), tiles(resize(real, 16)))
        assert scored.fid.value == pytest.approx(expected, rel=1e-4)
        assert (scored.images, scored.reference) == (40, 40)
    assert found.gap.value == pytest.approx(found.second.fid.value - found.first.fid.value)
    assert found.gap.lo > 0  # unfiltered noise keeps its spread
    assert (found.first.antialias, found.second.antialias) == ("yes", "no")
    assert found.resized


def test_without_a_resize_there_is_no_gap():
    mine = torch.randint(0, 256, (9, 3, 16, 16), dtype=torch.uint8)
    found = gap_of(mine, 255 - mine, TILES, ("clean", "bilinear"))
    assert not found.resized and found.gap.value == pytest.approx(0, abs=1e-6)


def test_the_command_works_offline_with_the_embedded_network(tmp_path, capsys):
    images = pictures(tmp_path / "images", 6, 96, 0)
    reference = pictures(tmp_path / "real", 5, 96, 1)
    out = tmp_path / "gap.csv"
    words = [str(images), f"reference={reference}", "network=scenes", "device=cpu", f"out={out}"]
    assert main(words) == 0
    shown = capsys.readouterr().out
    assert "bilinear less clean" in shown and "FID is mostly bias" in shown
    clean, bilinear, gap = csv.DictReader(out.read_text().splitlines())
    assert (clean["images"], clean["reference"]) == ("6", "5")
    less = float(bilinear["fid"]) - float(clean["fid"])
    assert float(gap["fid"]) == pytest.approx(less) and less != 0


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        ([], "expected one folder of images, found 0"),
        (["nowhere", "network=scenes"], "nowhere is not a folder"),
        (["{images}"], "reference=DIR is missing"),
        (["{images}", "reference={images}"], "same pictures"),
        (["{images}", "network=incepton"], "'inception'"),
        (["{images}", "protocols=clean,clean"], "two different names"),
        (["{images}", "protocols=clean,tff"], "'tf'"),
        (["{images}", "network=scenes", "limit=1"], "limit must be"),
        (["{images}", "network=scenes", "out=x.html"], ".csv or .md"),
        (
            ["{images}", "reference={real}", "weights.folder=none"],
            "network=scenes uses the embedded network",
        ),
    ],
)
def test_bad_words_are_explained(tmp_path, capsys, words, expected):
    images = pictures(tmp_path / "images", 3, 8, 0)
    real = pictures(tmp_path / "real", 3, 8, 1)
    given = [w.replace("{images}", str(images)).replace("{real}", str(real)) for w in words]
    assert main(given) == 2
    assert expected in capsys.readouterr().err
