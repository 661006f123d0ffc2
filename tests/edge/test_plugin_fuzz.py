"""Whatever a drafter of a stranger does, it is a failed row that names it, and the others go on."""

import json
from pathlib import Path

import pandas as pd
import pytest

from bench.__main__ import main
from bench.records.load import load
from bench.report.document import document
from bench.report.page import render
from tests.edge.bad_drafter import FAILS, HARMLESS
from tests.edge.table import FOUND

TINY = [
    FOUND, "study=fake", "model=random24", "latency.prompts=0", "quality.images=1",
    "quality.reseeds=0", "backend.layers=torch", "time_limit=2",
]  # fmt: skip


def entry(how: str) -> str:
    words = ["drafter=bad", f"drafter.how={how}", "tree.depth=2", "tree.top_k=2", "tree.nodes=4"]
    return json.dumps({"decoder": "eagle2", "name": how, "overrides": words})


def entries(*hows: str) -> str:
    text = ",".join(entry(how) for how in hows).replace('"decoder"', "decoder")
    return text.replace('"name"', "name").replace('"overrides"', "overrides")


@pytest.fixture(scope="module")
def ran(tmp_path_factory: pytest.TempPathFactory) -> tuple[int, Path]:
    """One study of all of them, between two decoders of the project."""
    folder = tmp_path_factory.mktemp("fuzz") / "run"
    every = entries(*FAILS, *HARMLESS)
    words = [*TINY, f"decoders=[ar,{every},{{decoder: ar, name: last}}]"]
    return main(["run", *words, f"run_dir={folder}"]), folder


@pytest.mark.parametrize("how", FAILS)
def test_a_bad_drafter_is_a_failed_row_that_names_it(ran: tuple[int, Path], how: str) -> None:
    status, folder = ran
    assert status == 1
    rows = pd.read_parquet(folder / "records.parquet")
    mine = rows[rows.decoder == how]
    assert len(mine) == 1 and (mine.status == "failed").all()
    for error in mine.error:
        assert FAILS[how] in error and "bad_drafter" in error
    summary = pd.read_csv(folder / "summary.csv").set_index("decoder")
    assert summary.loc[how, "status"].startswith("failed")


@pytest.mark.parametrize("name", ["ar", "last", *HARMLESS])
def test_the_others_go_on(ran: tuple[int, Path], name: str) -> None:
    rows = pd.read_parquet(ran[1] / "records.parquet")
    mine = rows[rows.decoder == name]
    assert len(mine) == 1 and (mine.status == "ok").all()


def test_the_report_holds_every_error(ran: tuple[int, Path]) -> None:
    page = render(document(load(ran[1]))).encode("utf-8").decode()
    assert all(how in page for how in FAILS) and r"caf\udcff" in page
