"""Records of strangers: each is left out of the board with its reason, and none ends in a
traceback; what is shown of names moves no cursor, runs no formula and makes no link."""

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pandas as pd
import pyarrow as pa
import pyarrow.compute
import pyarrow.parquet as pq
import pytest

from bench.__main__ import main
from bench.compare.leaderboard import read_lines
from bench.data.clean import for_csv, for_markdown, for_page, on_one_line, shown
from bench.data.errors import FolderError
from bench.records import rows as records
from bench.records.load import load
from bench.records.run_json import _seal, files_of
from decoders.models.weights import sha256_of
from tests.bench.compare.made import finished, save

Change = Callable[[Path], object]


@pytest.fixture(scope="module")
def base(tmp_path_factory) -> Path:
    return finished(tmp_path_factory.mktemp("honest") / "run")


def forged(folder: Path, **changes: Any) -> None:
    """run.json with the hashes and the seal of what lies there now."""
    said = json.loads((folder / "run.json").read_text()) | changes
    said["files"] = {str(p.relative_to(folder)): sha256_of(p) for p in files_of(folder)}
    said["seal"] = _seal({key: value for key, value in said.items() if key != "seal"})
    (folder / "run.json").write_text(json.dumps(said))


def says(**changes: Any) -> Change:
    return lambda folder: forged(folder, **changes)


def cell(column: str, value: object, table: str = "summary.csv", who: str = "eagle2") -> Change:
    def change(folder: Path) -> None:
        found = pd.read_csv(folder / table, keep_default_na=False, dtype=str)
        found.loc[found.decoder == who, column] = str(value)
        found.to_csv(folder / table, index=False)

    return change


def row(column: str, value: object, protocol: str = "latency") -> Change:
    def change(folder: Path) -> None:
        rows = records.read(folder / "records.parquet").to_pandas()
        rows.loc[rows.index[(rows.decoder == "eagle2") & (rows.protocol == protocol)], column] = (
            value
        )
        save(rows, folder)

    return change


def text(name: str, content: str | bytes) -> Change:
    data = content.encode() if isinstance(content, str) else content
    return lambda folder: (folder / name).write_bytes(data)


def entry(name: str, *path: str, value: Any) -> Change:
    """A place in a JSON file."""

    def change(folder: Path) -> None:
        found = json.loads((folder / name).read_text())
        at = found
        for key in path[:-1]:
            at = at[key]
        at[path[-1]] = value
        (folder / name).write_text(json.dumps(found))

    return change


def column(name: str, values: Callable[[int], pa.Array]) -> Change:
    """A column of records.parquet of another type, under a seal that holds."""

    def change(folder: Path) -> None:
        table = pq.read_table(folder / "records.parquet")
        at = table.schema.get_field_index(name)
        table = table.set_column(at, name, values(table.num_rows))
        records.write(folder / "records.parquet", table)

    return change


def twice(table: str) -> Change:
    def change(folder: Path) -> None:
        lines = (folder / table).read_text().splitlines()
        (folder / table).write_text("\n".join([*lines, lines[-1]]) + "\n")

    return change


def rows_twice(folder: Path) -> None:
    table = records.read(folder / "records.parquet")
    timed = table.filter(pa.compute.equal(table["protocol"], "latency"))
    records.write(folder / "records.parquet", pa.concat_tables([table, timed]))


def link(name: str) -> Change:
    def change(folder: Path) -> None:
        outside = folder.parent.parent / "outside"
        outside.write_text((folder / name).read_text() if (folder / name).is_file() else "secret")
        (folder / name).unlink(missing_ok=True)
        (folder / name).symlink_to(outside)

    return change


def gone(name: str) -> Change:
    return lambda folder: (folder / name).unlink()


SCORES = ("figures of eagle2", "value", "scores")
# What was done to the record, whether its hashes were made again, and what the reason says.
CASES: dict[str, tuple[Change, bool, str]] = {
    "speed-up of 99": (cell("speedup", 99), True, "speedup of eagle2 is 99"),
    "an interval of its own": (cell("speedup_lo", 1.2), True, "speedup_lo of eagle2"),
    "a speed-up of 1e308": (cell("speedup", "1e308"), True, "speedup of eagle2 is 1e+308"),
    "a speed-up of inf": (cell("speedup", "inf"), True, "not finite"),
    "a speed-up in words": (cell("speedup", "fast"), True, "non-number"),
    "no speed-up": (cell("speedup", ""), True, "speedup of eagle2 is nan"),
    "seconds that no row has": (cell("latency_mean_s", 0.001), True, "latency_mean_s of eagle2"),
    "codes per forward that no row has": (cell("mal", 9), True, "mal of eagle2 is 9"),
    "more images than rows": (cell("n_quality", 5000), True, "n_quality of eagle2"),
    "FID that was not judged": (cell("fid", 0.01), True, "fid of eagle2 is 0.01"),
    "FID outside its interval": (
        lambda f: (cell("fid", 0.01)(f), entry("judged.json", *SCORES, "fid", value=0.01)(f)),
        True, "fid of eagle2 lies outside its own interval",
    ),
    "CLIP that no image has": (cell("clip", 99), True, "clip of eagle2 is 99"),
    "precision of 7": (cell("precision", 7), True, "precision of eagle2 is 7"),
    "figures of other pictures": (
        entry("judged.json", "figures of eagle2", "of", value="0"), True, "clip of eagle2",
    ),
    "exact for LANTERN": (
        lambda f: [cell(name, "exact", table, "lantern")(f)
                   for name, table in (("exactness", "summary.csv"), ("verdict", "exactness.csv"))],
        True, "verdicts",
    ),
    "exact for LANTERN, everywhere": (
        lambda f: [*(cell(name, "exact", table, "lantern")(f) for name, table in
                     (("exactness", "summary.csv"), ("verdict", "exactness.csv"))),
                   forged(f, verdicts={"ar": "exact", "eagle2": "exact", "lantern": "exact",
                                       "lantern_released": "broken"})],
        True, "lantern is called exact",
    ),
    "two verdicts": (cell("exactness", "relaxed", who="eagle2"), True, "eagle2 is relaxed in"),
    "another card": (says(machine={"cpu": "a CPU", "gpu": "H100", "torch": "2", "threads": [2]}),
                     False, "of machine"),
    "another card in every file": (
        lambda f: [entry("study.json", "machine", "gpu", value="H100")(f),
                   forged(f, machine={"cpu": "a CPU", "gpu": "H100", "threads": [2]})],
        False, "of several machines",
    ),
    "another model": (cell("model", "llamagen_xl_256"), True, "rows of eagle2 are of another"),
    "another temperature": (cell("temperature", "0.0"), True, "rows of eagle2 are of another"),
    "a decoder twice": (twice("summary.csv"), True, "names a decoder twice"),
    "rows twice": (rows_twice, True, "holds a row twice"),
    "a decoder without rows": (cell("decoder", "eagle3"), True, "rows of eagle3"),
    "seconds of zero": (row("seconds_total", 0.0), True, "took no time"),
    "seconds for ever": (row("seconds_total", float("inf")), True, "took no time"),
    "no forward": (row("nfe", 0), True, "took no time"),
    "threads in words": (
        column("threads", lambda n: pa.array(["two"] * n)), True, "records.parquet",
    ),
    "threads null": (column("threads", lambda n: pa.nulls(n, pa.int64())), True, "empty cells"),
    "prompts of other types": (
        column("prompt", lambda n: pa.array([[1]] * n)), True, "records.parquet",
    ),
    "decoders null": (
        column("decoder", lambda n: pa.nulls(n, pa.string())), True, "records.parquet",
    ),
    "a picture of others": (row("image", "/etc/passwd", "quality"), True, "'/etc/passwd'"),
    "a picture above": (row("image", "../../key.png", "quality"), True, "not its own"),
    "another's picture": (
        row("image", "images/ar-0/quality/quality-0-0.png", "quality"), True, "not its own",
    ),
    "records of no table": (text("records.parquet", b"PAR1"), True, "no readable Parquet"),
    "summary not UTF-8": (text("summary.csv", b"\xff\xfe\x00"), True, "summary.csv"),
    "summary empty": (text("summary.csv", b""), True, "not a readable table"),
    "fairness of other columns": (text("fairness.csv", "a,b\n1,2\n"), True, "lacks the columns"),
    "exactness of other columns": (text("exactness.csv", "a,b\n1,2\n"), True, "lacks the columns"),
    "roofline in words": (
        text("roofline.csv", "decoder,note\nar,\n"), True, "lacks the columns"),
    "judged is a list": (text("judged.json", "[]"), True, "of protocols"),
    "judged in words": (entry("judged.json", *SCORES, "fid", value="low"), True, "of protocols"),
    "judged prompts as text": (
        entry("judged.json", *SCORES, "protocol", value="text"), True, "of protocols"),
    "study is a list": (text("study.json", "[]"), True, "must hold an object"),
    "study without end": (text("study.json", "[" * 99999), True, "nested too deeply"),
    "study's prompts as text": (
        entry("study.json", "config", "prompts", value="coco"), True, "prompts must be a mapping"),
    "study's machine as numbers": (
        entry("study.json", "machine", "cpu", value=7), True, "machine.cpu must be a string"),
    "another configuration": (entry("study.json", "config", "name", value="x"), True, "of study"),
    "run.json is a list": (text("run.json", "[]"), False, "must hold an object"),
    "run.json of nothing": (text("run.json", b""), False, "empty"),
    "protocols of other types": (says(protocols="all"), False, "protocols must be a list"),
    "protocols of nothing": (says(protocols=[{}]), False, "of protocols"),
    "a commit of others": (says(commits=["0" * 40]), False, "of commits"),
    "a hash that is none": (entry("run.json", "seal", value="0"), False, "seal"),
    "a file without a hash": (text("roofline.csv", "x"), False, "no hash of roofline.csv"),
    "judged removed": (gone("judged.json"), True, "of protocols"),
    "exactness removed": (gone("exactness.csv"), True, "of verdicts"),
    "a link to a file": (link("judged.json"), True, "is a link"),
    "a link beside": (link("notes.txt"), False, "is a link"),
}  # fmt: skip


def bad_record(base: Path, root: Path, name: str) -> Path:
    """The record of `base` below a folder, changed as a case says."""
    bad = Path(shutil.copytree(base, root / "board" / "bad"))
    change, hashed, _ = CASES[name]
    change(bad)
    if hashed:
        forged(bad)
    return bad


@pytest.mark.parametrize("name", CASES)
def test_a_bad_record_is_left_out_with_its_reason(base, tmp_path, name):
    bad = bad_record(base, tmp_path, name)
    with pytest.raises(FolderError) as error:
        read_lines(bad.parent)
    why = str(error.value).partition("can be shown. bad: ")[2]
    assert CASES[name][2] in why, error.value


@pytest.mark.parametrize(
    "name",
    [n for n, (_, _, why) in CASES.items() if n.startswith(("a link", "study is", "a picture of"))],
)
def test_publish_refuses_what_is_damaged_or_points_elsewhere(base, tmp_path, capsys, name):
    bad = bad_record(base, tmp_path, name)
    assert main(["publish", str(bad), str(tmp_path / "out")]) == 2
    assert "Traceback" not in capsys.readouterr().err
    assert not (tmp_path / "out").exists()


def test_publish_does_not_write_through_a_link(base, tmp_path, capsys):
    out, outside = tmp_path / "out", tmp_path / "outside"
    assert main(["publish", str(base), str(out)]) == 0
    outside.write_text("mine")
    (out / "table.md").symlink_to(outside)
    assert main(["publish", str(base), str(out)]) == 2
    assert "is a link" in capsys.readouterr().err and outside.read_text() == "mine"


@pytest.mark.parametrize("name", ["judged is a list", "judged in words", "study's prompts as text"])
def test_diff_of_damaged_records_ends_with_a_message(base, tmp_path, capsys, name):
    bad = bad_record(base, tmp_path, name)
    assert main(["diff", str(base), str(bad)]) in (0, 1, 2)
    assert "Traceback" not in "".join(capsys.readouterr())


def test_a_slow_baseline_is_marked_where_fairness_was_removed(base, tmp_path):
    lines, _ = read_lines(base.parent)
    assert all(line["unfair"] for line in lines)  # no floors were measured: nobody knows


def test_the_board_says_what_was_left_out_and_that_nothing_was_measured(base, tmp_path, capsys):
    bad = bad_record(base, tmp_path, "speed-up of 99")
    shutil.copytree(base, bad.parent / "good")
    lines, left_out = read_lines(bad.parent)
    assert {line["record"] for line in lines} == {"good"}
    assert [name for name, _ in left_out] == ["bad"]
    assert main(["leaderboard", str(bad.parent)]) == 0
    page, out = (bad.parent / "leaderboard.html").read_text(), capsys.readouterr().out
    for written in (page, out):
        assert "Left out" in written and "speedup of eagle2 is 99" in written
        assert "ashes match; nothing was measured again" in written


def test_a_report_opens_no_picture_of_others(base, tmp_path):
    run = Path(shutil.copytree(base, tmp_path / "run"))
    row("image", "/etc/passwd", "quality")(run)
    with pytest.raises(FolderError, match=r"'/etc/passwd', which is not its own"):
        load(run)


TEXTS = {
    "\x1b[2J": ("\\x1b[2J", "\\x1b[2J", "\\\\x1b[2J"),
    "a\x07b": ("a\\x07b", "a\\x07b", "a\\\\x07b"),
    "\u202etxt": ("\\u202etxt", "\\u202etxt", "\\\\u202etxt"),
    "\u2066x": ("\\u2066x", "\\u2066x", "\\\\u2066x"),
    "\udcff": ("\\udcff", "\\udcff", "\\\\udcff"),
    "[x](javascript:1)": ("[x](javascript:1)", "[x](javascript:1)", "[x\\](javascript:1)"),
    "![x](http://a/b.png)": ("![x](http://a/b.png)",) * 2 + ("![x\\](http://a/b.png)",),
    "[x]: http://a": ("[x]: http://a", "[x]: http://a", "[x\\]: http://a"),
    "1.2 [1.1, 1.3]": ("1.2 [1.1, 1.3]",) * 3,
    "=cmd|' /C calc'!A0": ("=cmd|' /C calc'!A0", "'=cmd|' /C calc'!A0", "=cmd\\|' /C calc'!A0"),
    "+1": ("+1", "'+1", "+1"),
    "@SUM(A1)": ("@SUM(A1)", "'@SUM(A1)", "@SUM(A1)"),
    "-1+cmd": ("-1+cmd", "'-1+cmd", "-1+cmd"),
    "-0.5": ("-0.5", "-0.5", "-0.5"),
}


@pytest.mark.parametrize("text", TEXTS, ids=ascii)
def test_a_text_is_cleaned_for_each_kind_of_output(text):
    plain, cell, markdown = TEXTS[text]
    assert (shown(text), for_csv(text), for_page(text)) == (plain, cell, plain)
    assert for_markdown(text) == markdown
    assert for_csv(-1.5) == -1.5 and on_one_line("a\nb") == "a\\nb"
