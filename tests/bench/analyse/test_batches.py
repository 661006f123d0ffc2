"""Batch sizes go through the estimator, the marks and the pooling of the main table."""

import math

import pandas as pd
import pytest

from bench.analyse.analyse import analyse, load
from bench.analyse.run import Run
from bench.report.tables import batch_tables, main_tables
from bench.store.facts import read_findings
from tests.bench.report.synthetic import DECODERS, write_run

BUSY = {"disturbed": True, "cpu_others": 0.5, "cpu_steal": 0.0}


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Run:
    """A run whose timed images were timed two at a time too."""
    lineup = tuple(d for d in DECODERS if d.name in ("ar", "sd_chain", "lantern"))
    return load(write_run(tmp_path_factory.mktemp("batches"), lineup))


def by_batch(run: Run, **busy: int) -> Run:
    """The run analysed anew with such rows. busy: of a decoder's timings at this batch size half
    were disturbed."""
    pairs = run.rows[run.rows.protocol == "latency"].assign(protocol="batched", batch=2)
    rows = pd.concat([run.rows, pairs], ignore_index=True)
    for name, batch in busy.items():
        timed = rows.protocol == ("latency" if batch == 1 else "batched")
        half = timed & (rows.decoder == name) & (rows.prompt_index % 4 < 2)
        rows.loc[half, [*BUSY]] = [*BUSY.values()]
    return analyse(run.folder, rows, run.identity, read_findings(run.folder))


def speed_ups(run: Run) -> dict[tuple[str, str], str]:
    """The cells of the table by batch size, and under "main" those of the main tables."""
    (table,) = batch_tables(run)
    at = table.headings.index("speed-up at this batch")
    cells = {(row.cells[1], row.cells[0]): row.cells[at] for row in table.rows}
    for main in main_tables(run):
        at = main.headings.index("speed-up")
        cells |= {(row.cells[0], "main"): row.cells[at] for row in main.rows}
    return cells


def test_a_single_image_has_the_figures_of_the_main_table_and_others_are_pooled(run: Run) -> None:
    run = by_batch(run)
    lines = {(line["decoder"], line["batch"]): line for line in run.lines("batches")}
    for entry in run.entries:
        if (one := lines.get((entry.name, 1))) is None:
            continue  # AR under another seed
        assert (one["mal"], one["speedup"]) == (entry.number("mal"), entry.number("speedup"))
        rows = run.rows[(run.rows.decoder == entry.name) & (run.rows.protocol == "batched")]
        pooled = (rows.mal * rows.nfe).sum() / rows.nfe.sum()
        assert lines[entry.name, 2]["mal"] == pytest.approx(pooled)
        assert (pooled == pytest.approx(rows.mal.mean())) == (entry.name == "ar")
        assert lines[entry.name, 2]["speedup"] > 0 and lines[entry.name, 2]["calls"] == 10


@pytest.mark.parametrize("batch", [1, 2])
def test_a_decoder_with_half_of_its_timings_disturbed_is_not_measured(run: Run, batch: int) -> None:
    cells = speed_ups(by_batch(run, lantern=batch))
    busy, quiet = (cells["lantern", f"{size}"] for size in (batch, 3 - batch))
    assert busy == "not measured (1)" == cells["lantern", "main" if batch == 1 else "2"]
    unknown = batch == 1  # a decoder that main does not measure is measured at no size
    assert quiet == "not measured (1)" if unknown else math.isfinite(float(quiet.split()[0]))
    assert "[" in cells["sd_chain", "1"] and "[" in cells["sd_chain", "2"]
