"""The whole report of a made-up run: what is written, what it says, and what is refused."""

import re
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pandas as pd
import pytest

from bench.data.errors import FolderError
from bench.records.load import load
from bench.report.build import ReportPaths, write_report
from tests.bench.report.synthetic import DECODERS, write_run

PLOTS = {"speedup_clip", "speedup_tv_output", "acceptance_depth", "phases"}


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> ReportPaths:
    folder = tmp_path_factory.mktemp("run") / "synthetic"
    return write_report(load(write_run(folder, prompts=13)))


def test_a_report_is_written_small_self_contained_and_escaped(built):
    assert set(built.plots) == PLOTS
    assert max(files["png"].stat().st_size for files in built.plots.values()) < 300_000
    assert built.terminal == (built.folder / "table.txt").read_text(encoding="utf-8")
    page = built.page.read_text(encoding="utf-8")
    sources = re.findall(r'<img src="([^"]*)"', page)
    assert len(sources) == 3 * 11 and page.count('<svg role="img"') == len(PLOTS)
    assert all(source.startswith("data:image/webp") for source in sources)
    assert not [w for w in ('src="http', "src='http", 'href="http', "@import") if w in page]
    assert len(page) - sum(map(len, sources)) < 1_000_000
    assert "row 3 &lt;cond&gt; of 2" in page and "<cond>" not in page
    assert all(f">{made.name}</td>" in page for made in DECODERS)
    for fact in ("0123456789abcdef", "Example CPU, 2 cores", "torch: 2.9.0", "c0ffee"):
        assert fact in page


def test_a_run_without_quality_pictures_and_traces_shows_nothing_empty(tmp_path):
    nan = float("nan")
    absent = dict.fromkeys(("fid", "fid_lo", "fid_hi", "clip", "clip_lo", "clip_hi"), nan)
    folder = write_run(tmp_path, (DECODERS[0], DECODERS[4]), prompts=3, reseed=False, **absent)
    shutil.rmtree(folder / "images")  # as a published run: the rows still name them
    table = pd.read_parquet(folder / "records.parquet")
    for column in ("kind", "depth", "step", "accepted", "tv_shift", "bound", "codes", "tv_output"):
        table[column] = [[] for _ in table.index]
    table.to_parquet(folder / "records.parquet")
    paths = write_report(load(folder))
    assert set(paths.plots) == PLOTS - {"acceptance_depth", "speedup_clip"}
    page = paths.page.read_text(encoding="utf-8")
    assert 'href="#prompts"' not in page and "<img" not in page
    assert not [*paths.folder.glob("prompts/*.html")]
    assert re.search(r"lantern +2\.35 \[2\.27, 2\.44\] +1\.020 +[\d.]+ +— ", paths.terminal)


def test_all_failed_run_gives_a_page_that_says_so(tmp_path):
    broken = tuple(replace(made, error=f"DecoderError: no {made.name}") for made in DECODERS[:3])
    paths = write_report(load(write_run(tmp_path, broken, prompts=2, reseed=False)))
    page = paths.page.read_text(encoding="utf-8")
    assert "Every decoder of this run failed" in page and paths.plots == {}
    for made in broken:
        assert f"DecoderError: no {made.name}" in page
        assert f"DecoderError: no {made.name}" in paths.terminal


def rewritten(path: Path, change: Callable[[pd.DataFrame], pd.DataFrame]) -> None:
    """A table of a run's folder, changed."""
    if path.suffix == ".csv":
        change(pd.read_csv(path)).to_csv(path, index=False)
    else:
        change(pd.read_parquet(path)).to_parquet(path)


HARMS: dict[str, tuple[Callable[[Path], object], str]] = {
    "missing": (Path.unlink, ""),
    "no table": (lambda path: path.write_bytes(b"\x00\x01 no table"), ""),
    "no rows": (lambda path: rewritten(path, lambda table: table.iloc[:0]), "has no rows"),
    "a column less": (
        lambda path: rewritten(path, lambda table: table.drop(columns="mal")),
        "lacks the columns mal;",
    ),
}


@pytest.mark.parametrize("name", ["records.parquet", "summary.csv"])
@pytest.mark.parametrize(("harm", "says"), HARMS.values(), ids=HARMS)
def test_what_cannot_be_read_is_refused(tmp_path, name, harm, says):
    folder = write_run(tmp_path, DECODERS[:1], prompts=2, images=False)
    harm(folder / name)
    with pytest.raises(FolderError, match=f"{re.escape(name)}.*{says}"):
        load(folder)
    with pytest.raises(FolderError, match="no run folder"):
        load(tmp_path / "nowhere")


def test_rows_of_another_schema_version_are_refused(tmp_path):
    folder = write_run(tmp_path, DECODERS[:1], prompts=2, images=False)
    rewritten(folder / "records.parquet", lambda rows: rows.assign(schema_version=8))
    with pytest.raises(FolderError, match=r"schema version \[8\]"):
        load(folder)
