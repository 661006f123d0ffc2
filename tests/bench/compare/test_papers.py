"""`python -m bench papers`: a method in several papers, next to the AR of each."""

import math
from pathlib import Path

import pytest

from bench.__main__ import main
from bench.compare.papers import side_by_side
from bench.compare.published import COLUMNS, load

ROWS = (  # paper, data, px, temperature, GPU, method, speed-up, s/image
    ("A", "MS-COCO", "768", "1", "A100", "AR", "1.0", "80"),
    ("A", "MS-COCO", "768", "1", "A100", "SJD", "2.0", "40"),
    ("B", "MS-COCO 2017", "768", "1", "A100", "AR", "1.0", "100"),
    ("B", "MS-COCO 2017", "768", "1", "A100", "SJD", "2.5", "40"),
    ("B", "MS-COCO 2017", "768", "0", "A100", "SJD", "9.0", ""),  # greedy: another question
    ("B", "MS-COCO 2017", "768", "1", "A100", "Own", "3.0", "33"),  # of one paper alone
    ("C", "MS-COCO", "1024", "1", "A100", "SJD", "2.2", "90"),  # other work: larger images
    ("C", "MS-COCO", "768", "1", "", "SJD", "2.1", "50"),  # a GPU that is not stated
)


@pytest.fixture
def published(tmp_path: Path) -> Path:
    path = tmp_path / "published.csv"
    lines = [",".join(COLUMNS)]
    for paper, data, px, heat, gpu, method, ratio, seconds in ROWS:
        head = f"{paper},2410.01699,table,Model,{data},{px},{heat},,,{gpu},{method},,AR,{ratio},"
        lines.append(f"{head},{seconds},,,,,,")
    path.write_text("\n".join(lines) + "\n")
    return path


def test_ratios_are_over_the_own_and_over_the_fastest_ar_of_equal_work(published: Path) -> None:
    (lines,) = side_by_side(load(published)).values()
    found = {(o.row.paper, o.row.method, o.row.resolution, o.row.gpu): o for o in lines}
    assert len(lines) == 6 and "Own" not in {o.row.method for o in lines}
    b = found["B", "SJD", 768, "A100"]
    assert (b.own_ar, b.best_ar, b.speedup, b.over_best) == (100, 80, 2.5, 2.0)
    for other in (found["C", "SJD", 1024, "A100"], found["C", "SJD", 768, ""]):
        assert math.isnan(other.over_best)


def test_the_command_writes_table_and_picture(published: Path, tmp_path: Path, capsys) -> None:
    out = tmp_path / "out"
    assert main(["papers", f"published={published}", "model=Model", f"out={out}"]) == 0
    assert "over the fastest AR" in capsys.readouterr().out
    assert {p.name for p in out.iterdir()} == {"papers.md", "papers.svg", "papers.png"}


def test_an_unknown_model_is_answered_with_the_nearest(published: Path, capsys) -> None:
    assert main(["papers", f"published={published}", "model=Modl"]) == 2
    assert "did you mean 'Model'" in capsys.readouterr().err
    assert main(["papers", f"published={published}", "method=SJ"]) == 2
    assert "did you mean 'SJD'" in capsys.readouterr().err
    assert main(["papers", f"published={published}", "method=AR"]) == 0
    assert "SJD" not in capsys.readouterr().out
