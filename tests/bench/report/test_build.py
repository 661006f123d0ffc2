"""Which files a report is, where it goes, what it says of a run that has little, and what of a
run's folder is refused."""

import os
import re
import shutil
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pandas as pd
import pytest
from PIL import Image

import bench
from bench.__main__ import main
from bench.analyse.analyse import load
from bench.errors import FolderError
from bench.report.page import write_report
from bench.report.plots import figures
from bench.report.style import save
from tests.bench import fakes
from tests.bench.report.synthetic import DECODERS, write_run

PLOTS = {"speedup_clip", "speedup_tv_output", "acceptance_depth", "phases", "verification"}
FEW = ["latency.prompts=2", "quality.images=0", "decoders=[fake_ar,fake_spec]"]


def plots_of(folder: Path) -> set[str]:
    return {path.stem for path in folder.glob("plots/*")}


def test_a_report_is_written_small_self_contained_and_escaped(written, said, tmp_path):
    assert plots_of(written) == PLOTS
    for plot in figures(said.run):
        save(plot, tmp_path)
    for name in PLOTS:
        png, pdf = (written / "plots" / f"{name}.{ending}" for ending in ("png", "pdf"))
        with Image.open(png) as picture:
            assert picture.width == 1280 and png.stat().st_size < 300_000
        assert pdf.read_bytes() == (tmp_path / pdf.name).read_bytes(), "the same bytes"
    page = (written / "index.html").read_text(encoding="utf-8")
    sources = re.findall(r'<img src="([^"]*)"', page)
    assert len(sources) == 3 * 10 and page.count('<svg role="img"') == len(PLOTS)
    assert all(source.startswith("data:image/webp") for source in sources)
    assert not [w for w in ('src="http', "src='http", 'href="http', "@import") if w in page]
    assert len(page) - sum(map(len, sources)) < 1_000_000
    assert "row 3 &lt;cond&gt; of 2" in page and "<cond>" not in page
    assert all(f">{made.name}</td>" in page for made in DECODERS)
    for fact in ("0123456789abcdef", "Example CPU, 2 cores", "torch: 2.9.0", "c0ffee"):
        assert fact in page


def test_a_run_without_quality_pictures_and_traces_shows_nothing_empty(tmp_path):
    folder = write_run(tmp_path, (DECODERS[0], DECODERS[4]), prompts=3)
    old = tmp_path / "report" / "prompts" / "77.html"
    old.parent.mkdir(parents=True)
    old.touch()
    shutil.rmtree(folder / "images")  # as a published run: the rows still name them
    rows = pd.read_parquet(folder / "records.parquet")
    for column in ("kind", "depth", "step", "accepted", "tv_shift", "bound", "codes", "tv_output"):
        rows[column] = [[] for _ in rows.index]
    rows.to_parquet(folder / "records.parquet")
    report = write_report(load(folder))
    assert plots_of(report) == PLOTS - {"acceptance_depth", "speedup_clip", "speedup_tv_output"}
    page = (report / "index.html").read_text(encoding="utf-8")
    assert 'href="#prompts"' not in page and "<img" not in page
    assert not [*report.glob("prompts/*.html")], "those of an earlier report are removed"
    text = (report / "table.txt").read_text(encoding="utf-8")
    assert re.search(r"lantern +relaxed +2\.[^—]+— ", text)


def test_all_failed_run_gives_a_page_that_says_so(tmp_path):
    broken = tuple(replace(made, error=f"DecoderError: no {made.name}") for made in DECODERS[:3])
    report = write_report(load(write_run(tmp_path, broken, prompts=2)))
    page, text = ((report / name).read_text() for name in ("index.html", "table.txt"))
    assert "Every decoder of this run failed" in page and not plots_of(report)
    assert all(made.error in page and made.error in text for made in broken)


def state(folder: Path) -> dict[Path, tuple[bytes, int]]:
    """Every file and folder with its bytes and the time of its last change."""
    return {
        path: (path.read_bytes() if path.is_file() else b"", path.stat().st_mtime_ns)
        for path in [folder, *folder.rglob("*")]
    }


def test_a_report_elsewhere_leaves_the_run_as_it_was(tmp_path, capsys):
    run, out = tmp_path / "run", tmp_path / "new" / "report"
    words = [fakes.SEARCHPATH, "study=fake", f"run_dir={run}", *FEW]
    assert main(["run", *words]) == 0
    before = state(run)
    for _ in range(2):  # the second takes the place of the first
        assert main(["report", *words, f"out={out}", "gate=false"]) == 0
    there = {path.name for path in out.iterdir()}
    assert there >= {"index.html", "table.txt", "table.md", "table.tex", "plots"}
    page = (out / "index.html").read_text(encoding="utf-8")
    assert "fake_spec" in page
    assert f"report: {out / 'index.html'}" in capsys.readouterr().out
    assert state(run) == before
    assert main(["report", f"run_dir={run}"]) == 0, "its folder alone says enough"
    assert (run / "report" / "table.md").is_file()


def test_a_notebook_s_backend_of_matplotlib_stops_no_report(tmp_path):
    run = write_run(tmp_path / "run", DECODERS[:2], prompts=1)
    env = os.environ | {"PYTHONPATH": str(Path(bench.__file__).parents[1])}
    env |= {"MPLBACKEND": "module://nowhere.backend_inline"}
    words = [sys.executable, "-m", "bench", "report", str(run)]
    done = subprocess.run(words, env=env, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert list((run / "report" / "plots").glob("*.png"))


HARMS = {  # to a table -> what is said
    "": None,
    "has no rows": lambda table: table.iloc[:0],
    "lacks the columns mal;": lambda table: table.drop(columns="mal"),
    "schema version [8]": lambda table: table.assign(schema_version=8),
}


@pytest.mark.parametrize("says", HARMS)
def test_what_cannot_be_read_is_refused(tmp_path, says):
    name = "records.parquet"
    path = write_run(tmp_path, DECODERS[:1], prompts=2) / name
    if HARMS[says] is None:
        path.write_bytes(b"\x00\x01 no table")
    else:
        HARMS[says](pd.read_parquet(path)).to_parquet(path)
    with pytest.raises(FolderError, match=f"{re.escape(name)}.*{re.escape(says)}"):
        load(tmp_path)
    path.unlink()
    with pytest.raises(FolderError, match=re.escape(f"there is no {path}")):
        load(tmp_path)
