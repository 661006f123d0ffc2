"""run.json vouches for a run's files; `bench publish` makes a folder that `bench diff` reads."""

import json
import shutil
from pathlib import Path

import pytest

from bench.__main__ import main
from bench.data.errors import FolderError
from bench.records import rows as records
from bench.records.run_json import read_record, record_of
from tests.bench.compare.made import finished


@pytest.fixture(scope="module")
def made(tmp_path_factory) -> Path:
    return finished(tmp_path_factory.mktemp("made") / "run")


@pytest.fixture
def run(made, tmp_path) -> Path:
    return Path(shutil.copytree(made, tmp_path / "run"))


def test_a_record_gathers_what_the_files_say(run):
    said = read_record(run / "run.json").said
    assert said["study"] == "main" and said["schema_version"] == records.SCHEMA_VERSION
    assert said["verdicts"]["lantern_released"] == "broken"
    (lines,) = said["protocols"]
    assert lines["images"] == 8 and lines["antialias"] == "yes" and lines["prompts"] == "scenes"
    assert lines["decoders"] == ["ar", "eagle2", "lantern", "lantern_released"]
    assert {"study.json", "records.parquet", "summary.csv", "judged.json"} <= set(said["files"])
    assert said["machine"]["cpu"] == "a CPU"
    assert record_of(run) == said


def test_decoders_of_other_pictures_are_of_another_protocol(run):
    rows = records.read(run / "records.parquet").to_pandas()
    at = rows.index[(rows.decoder == "eagle2") & (rows.protocol == "quality")][0]
    rows.loc[at, "status"] = "failed"
    rows.to_parquet(run / "records.parquet")
    groups = {tuple(p["decoders"]): p["images"] for p in record_of(run)["protocols"]}
    assert groups == {("ar", "lantern", "lantern_released"): 8, ("eagle2",): 7}


@pytest.mark.parametrize("name", ["summary.csv", "exactness.csv", "records.parquet", "study.json"])
def test_a_changed_file_is_refused_by_its_name(run, name):
    with (run / name).open("ab") as file:
        file.write(b" ")
    with pytest.raises(FolderError, match=rf"{name} is not as it was recorded"):
        read_record(run / "run.json")


def test_a_missing_file_and_a_changed_record_are_refused(run):
    said = json.loads((run / "run.json").read_text())
    said["verdicts"]["lantern_released"] = "exact"
    (run / "judged.json").unlink()
    for text, expected in (
        (None, r"judged\.json is missing"),
        (json.dumps(said), r"run\.json was changed after it was written"),
        ("[]", "must hold an object"),
        ("{}", "it lacks format, study"),
    ):
        if text:
            (run / "run.json").write_text(text)
        with pytest.raises(FolderError, match=expected):
            read_record(run / "run.json")


def test_published_runs_are_small_and_can_be_compared(run, tmp_path, capsys):
    (run / "report" / "plots").mkdir(parents=True)
    (run / "report" / "table.md").write_text("table")
    (run / "report" / "plots" / "a.png").write_text("png")
    (run / "report" / "plots" / "a.svg").write_text("<svg/>")
    out = tmp_path / "tables" / "main"
    assert main(["publish", str(run), str(out)]) == 0
    said = read_record(out / "run.json").said
    assert set(said["left_out"]) == set(records.LISTS)
    assert (out / "table.md").read_text() == "table"
    assert [path.name for path in (out / "plots").iterdir()] == ["a.png"]
    whole, slim = (records.read(place / "records.parquet") for place in (run, out))
    plain = [table.drop_columns([*records.LISTS]).to_pandas() for table in (slim, whole)]
    assert plain[0].equals(plain[1])
    assert not any(slim.column("codes").to_pylist()[0])
    sizes = [(place / "records.parquet").stat().st_size for place in (run, out)]
    assert sizes[1] < sizes[0] / 2
    (run / "report" / "table.md").unlink()
    (run / "exactness.csv").write_text("")
    assert main(["publish", str(run), str(out), "lists=true"]) == 2  # the run is not as it was
    (run / "run.json").unlink()
    (run / "exactness.csv").unlink()
    assert main(["publish", str(run), str(out), "lists=true"]) == 0
    assert records.read(out / "records.parquet").column("codes") == whole.column("codes")
    assert not (out / "table.md").exists()
    capsys.readouterr()
    assert main(["diff", str(run), str(out)]) == 0
    shown = capsys.readouterr().out
    assert "CLIP" in shown and "images per second" in shown and "faster" not in shown


def test_a_publication_is_not_replaced_by_another_study(run, tmp_path, capsys):
    study = json.loads((run / "study.json").read_text())
    other = tmp_path / "there"
    other.mkdir()
    (other / "study.json").write_text(json.dumps(study | {"config_hash": "another"}))
    assert main(["publish", str(run), str(other)]) == 2
    assert "holds a run of another configuration" in capsys.readouterr().err
    assert [path.name for path in other.iterdir()] == ["study.json"]


def test_diff_says_that_a_file_was_changed(run, tmp_path, capsys):
    out = tmp_path / "out"
    assert main(["publish", str(run), str(out)]) == 0
    (out / "summary.csv").write_text((out / "summary.csv").read_text() + "\n")
    assert main(["diff", str(run), str(out)]) == 0
    assert "changed since it was recorded" in capsys.readouterr().out


def test_a_published_run_is_published_again_whole(run, tmp_path, capsys):
    (run / "report" / "plots").mkdir(parents=True)
    (run / "report" / "table.md").write_text("table")
    (run / "report" / "plots" / "a.png").write_text("png")
    one, other = tmp_path / "one", tmp_path / "other"
    assert main(["publish", str(run), str(one)]) == 0
    assert main(["publish", str(one), str(other), "lists=true"]) == 0
    assert (other / "table.md").read_text() == "table" and (other / "plots" / "a.png").is_file()
    said = read_record(other / "run.json").said
    assert set(said["left_out"]) == set(records.LISTS)  # they are empty, whatever is asked for
    assert capsys.readouterr().out.count("and the plots of its report") == 2
    shutil.rmtree(run / "report")
    assert main(["publish", str(run), str(other)]) == 0
    assert "plots" not in capsys.readouterr().out and not (other / "plots").exists()


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        ([], "expected a run folder and a folder to publish in, found 0"),
        (["{run}", "{run}"], "is the run itself"),
        (["{run}", "{run}/images"], "holds no published run"),
        (["{run}/images", "elsewhere"], "holds no finished run: study.json"),
        (["{run}", "x", "lists=maybe"], "true or false"),
        (["{run}", "{run}/study.json"], "is a file"),
    ],
)
def test_what_cannot_be_published_is_explained(made, capsys, words, expected):
    assert main(["publish", *[word.replace("{run}", str(made)) for word in words]]) == 2
    assert expected in capsys.readouterr().err
