"""A run in shards: who decodes an image changes nothing of it; merging and packing lose nothing."""

import errno
import fcntl
import json
import os
import signal
import subprocess
import sys
import tarfile
from io import BytesIO
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch
from PIL import Image

from bench.__main__ import main
from bench.config.compose import compose_study
from bench.config.schedule import cells
from bench.config.words import share
from bench.data.errors import ConfigError, FolderError
from bench.judge.quality import ScenesScorer, with_kept_features
from bench.prompts import Prompt
from bench.records.folder import open_folder
from bench.run.launch.merge import merge, read
from bench.run.runner import Shard, run_shard, run_study
from metrics.features import ScenesClipFeatures
from tests.bench import fakes
from tests.bench.run.test_run import FAILING

MADE_BY_CALL = ["batch", "started_at"]
UNTIMED = "latency.prompts=0"


def same(rows):
    """What does not depend on which images were decoded together, or when."""
    measured = [c for c in rows.columns if c.startswith(("seconds_", "cpu_"))]
    return rows.drop(columns=[*MADE_BY_CALL, *measured, "peak_memory_mb"]).map(str)


def sharded(config, count: int):
    """The rows of a run that so many workers did."""
    for index in range(count):
        run_shard(config, Shard(index, count))
    before = len(fakes.CALLS)
    result = run_study(config)
    assert len(fakes.CALLS) == before, "the run itself decodes nothing again"
    return result


@pytest.mark.parametrize("count", [3, 7])
def test_any_number_of_shards_gives_the_same_rows(fake_study, fake_run, tmp_path, count):
    whole, parts = fake_run(UNTIMED)[1].rows, fake_study(UNTIMED, f"run_dir={tmp_path / 'parts'}")
    assert same(sharded(parts, count).rows).equals(same(whole))


def test_a_worker_times_nothing_and_leaves_that_to_the_run(fake_study):
    config = fake_study("decoders=[fake_ar]")
    assert run_shard(config, Shard(0, 2)).rows == 6, "3 images, and 3 again under another seed"
    assert {size for _, _, size in fakes.CALLS} == {3}, "no call of one image"
    rows = run_study(config).rows
    assert rows.protocol.value_counts().to_dict() == {"quality": 6, "reseed": 6, "latency": 4}
    with pytest.raises(ConfigError, match="timed images alone"):
        run_shard(fake_study("quality.images=0", "name=timed"), Shard(0, 2))


@pytest.mark.parametrize("text", ["2/2", "1", "-1/2", "a/b", "0/0"])
def test_no_shard_is_refused(text):
    with pytest.raises(ConfigError, match="shard must be i/n with 0 <= i < n"):
        share("shard", text)


def test_workers_share_a_folder_but_no_shard_and_a_run_has_it_alone(fake_study, monkeypatch):
    monkeypatch.setattr("bench.records.folder.PATIENCE", 0.2)
    config = fake_study(UNTIMED)
    path, rest = Path(config.run_dir), (config.measured(), config.hash, {})
    with open_folder(path, *rest, shard="0-of-2"), open_folder(path, *rest, shard="1-of-2"):
        with (
            pytest.raises(FolderError, match="another worker has shard 0-of-2"),
            open_folder(path, *rest, shard="0-of-2"),
        ):
            pass
        with pytest.raises(FolderError, match="workers of it are"), open_folder(path, *rest):
            pass
    with (
        open_folder(path, *rest),
        pytest.raises(FolderError, match="another run is writing"),
        open_folder(path, *rest, shard="0-of-2"),
    ):
        pass


def test_a_shared_file_system_that_is_late_or_locks_nothing(fake_study, monkeypatch):
    config = fake_study(UNTIMED, "decoders=[fake_ar]", "quality.reseeds=0")
    run_shard(config, Shard(0, 2))
    real = Path.exists

    def late(path: Path) -> bool:
        return path.name != "study.json" and real(path)

    with monkeypatch.context() as patched:
        patched.setattr(Path, "exists", late)
        assert run_shard(config, Shard(1, 2)).failed == 0, "the folder's listing has it"

    def unlocked(*_: object) -> None:
        raise OSError(errno.ENOSYS, "Function not implemented")

    monkeypatch.setattr(fcntl, "flock", unlocked)
    with pytest.raises(FolderError, match=r"locks no files .*run_dir="):
        run_shard(config, Shard(1, 2))


def test_what_fails_is_tried_alone_then_is_a_row(fake_study):
    config = fake_study(UNTIMED, "quality.reseeds=0", f"decoders=[fake_ar,{FAILING}]")
    done = run_shard(config, Shard(0, 2))
    assert (done.rows, done.failed) == (6, 1)
    rows = sharded(config, 2).rows
    failed = rows[rows.status == "failed"]
    assert failed.prompt_index.tolist() == [2] and "NaN logits" in failed.error.iloc[0]


def test_an_image_that_kills_its_workers_becomes_a_failed_row(fake_study):
    config = fake_study(UNTIMED, "quality.reseeds=0", "decoders=[fake_ar]")
    cell = cells(config, fakes.load_model().sampling)[0].key
    note = Path(config.run_dir) / "shards" / "0-of-2.trying"
    note.parent.mkdir(parents=True)
    for tries, failed in ((2, 0), (3, 3)):
        note.write_text(json.dumps({"what": [cell, "quality-0-00000"], "tries": tries}))
        for row in Path(config.run_dir).glob("rows/*/*"):
            row.unlink()
        assert run_shard(config, Shard(0, 2)).failed == failed
        assert not note.exists()


def test_features_that_workers_keep_give_the_figures_of_all_images(tmp_path, monkeypatch):
    rng = np.random.default_rng(0)
    files = []
    for index in range(80):
        files.append(tmp_path / f"{index}.png")
        pixels = (rng.random((4, 4, 3)) * 255).astype(np.uint8).repeat(16, 0).repeat(16, 1)
        Image.fromarray(pixels).save(files[-1])
    prompts = [Prompt(str(i), "a red circle", "") for i in range(len(files))]

    def scorer() -> ScenesScorer:
        return ScenesScorer("cpu", 128, str(tmp_path / "cache"))

    wanted = scorer().score(files, prompts)
    assert not (tmp_path / "features").exists()
    for shard in range(3):
        with_kept_features(scorer(), tmp_path, files[shard::3])
    last = scorer()
    with_kept_features(last, tmp_path)
    last.reference = scorer().reference
    monkeypatch.setattr(ScenesClipFeatures, "forward", None)  # no picture is looked at again
    found = last.score(files, prompts)
    for name in ("fid", "fid_lo", "kid", "precision", "recall"):
        assert getattr(found, name) == pytest.approx(getattr(wanted, name), rel=1e-6, abs=1e-9)


def test_merged_by_hand_is_what_one_folder_would_hold(fake_study, fake_run, tmp_path):
    whole = fake_run(UNTIMED)[1].rows
    parts = [tmp_path / "one", tmp_path / "two"]
    for index, part in enumerate(parts):
        run_shard(fake_study(UNTIMED, f"run_dir={part}"), Shard(index, 2))
    out = tmp_path / "both"
    assert merge([read(parts[0])], out) == (len(whole) // 2, len(whole))
    assert merge([read(part) for part in parts], out) == (len(whole), len(whole))
    before = len(fakes.CALLS)
    merged = run_study(fake_study(UNTIMED, f"run_dir={out}")).rows
    assert same(merged).equals(same(whole)) and len(fakes.CALLS) == before


KILLED = """
import os, signal, sys
left = 4
def count(event, arguments):
    global left
    if event == "os.rename":
        left -= 1
    if event == "os.rename" and left < 0:
        os.kill(os.getpid(), signal.SIGKILL)
from bench.__main__ import main
sys.addaudithook(count)
sys.exit(main(sys.argv[1:]))
"""  # dies at its fifth write


@pytest.mark.slow
@pytest.mark.skipif("LANTERN_BENCH_KILLS" not in os.environ, reason="set LANTERN_BENCH_KILLS=5")
def test_a_merge_that_is_killed_at_a_write_goes_on(fake_study, fake_run, tmp_path):
    whole = fake_run(UNTIMED)[1].rows
    parts = [tmp_path / "one", tmp_path / "two"]
    for index, part in enumerate(parts):
        run_shard(fake_study(UNTIMED, f"run_dir={part}"), Shard(index, 2))
    words = ["merge", *map(str, parts), f"out={tmp_path / 'both'}"]
    for _ in range(int(os.environ["LANTERN_BENCH_KILLS"])):
        script = [sys.executable, "-c", KILLED, *words]
        assert subprocess.run(script).returncode == -signal.SIGKILL
    assert main(words) == 0
    before = len(fakes.CALLS)
    merged = run_study(fake_study(UNTIMED, f"run_dir={tmp_path / 'both'}")).rows
    assert same(merged).equals(same(whole)) and len(fakes.CALLS) == before


def changed(path: Path, **columns) -> None:
    """Every row of a folder with other values."""
    from bench.records import rows as records

    for file in path.glob("rows/*/*.parquet"):
        table = records.read(file)
        for name, value in columns.items():
            at = table.schema.get_field_index(name)
            table = table.set_column(at, table.schema[at], pa.array([value], table.schema[at].type))
        records.write(file, table)


@pytest.mark.parametrize(
    ("columns", "words", "expected"),
    [
        ({"codes": [1] * fakes.LENGTH}, [], "disagree on fake_ar, quality, seed 0, image 0"),
        ({"git_commit": "0" * 40}, [], "rows of two commits"),
        ({}, ["seed=5"], "two configurations: seed: 0 in the first, 5 in the second"),
    ],
)
def test_what_is_no_part_of_the_same_run_is_not_merged(
    fake_study, tmp_path, columns, words, expected
):
    one, two = tmp_path / "one", tmp_path / "two"
    for part, own in ((one, []), (two, words)):
        config = fake_study(
            UNTIMED, "decoders=[fake_ar]", "quality.reseeds=0", f"run_dir={part}", *own
        )
        run_shard(config, Shard(0, 3))
    changed(two, **columns)
    with pytest.raises(FolderError, match=expected):
        merge([read(one), read(two)], tmp_path / "both")
    assert not (tmp_path / "both").exists()


def test_merge_says_what_is_missing(fake_study, tmp_path, capsys):
    parts, out = [str(tmp_path / "one"), str(tmp_path / "two")], f"out={tmp_path / 'both'}"
    for index, part in zip((0, 2), parts, strict=True):
        run_shard(fake_study(UNTIMED, f"run_dir={part}"), Shard(index, 4))
    assert main(["merge", *parts, out]) == 1
    assert "12 rows are missing, so there is no FID yet" in capsys.readouterr().out


def test_merge_says_which_folder_it_cannot_take(fake_study, tmp_path, capsys):
    part, file, out = tmp_path / "one", tmp_path / "file", f"out={tmp_path / 'both'}"
    run_shard(fake_study(UNTIMED, f"run_dir={part}"), Shard(0, 2))
    file.write_text("")
    for words, expected in (
        ([part], "two or more run folders"),
        ([part, part, out], "one is named twice"),
        ([part, tmp_path / "none", out], "none holds no run"),
        ([part, file, out], "file is a file, where the folder of a run is expected"),
    ):
        assert main(["merge", *map(str, words)]) == 2
        assert expected in capsys.readouterr().err
    assert not (tmp_path / "both").exists()


def test_a_packed_run_is_lossless_and_pictures_come_again_from_the_codes(fake_study, tmp_path):
    config = fake_study("decoders=[fake_ar]")
    rows = run_study(config).rows
    words = ["pack", fakes.SEARCHPATH, "study=fake", f"run_dir={config.run_dir}"]
    words += ["decoders=[fake_ar]"]
    assert main([*words, f"pack.out={tmp_path / 'a'}"]) == 0
    assert main([*words, "pack.pictures=decoded", f"pack.out={tmp_path / 'b'}"]) == 0
    codes = pq.read_table(tmp_path / "a" / "codes.parquet")
    assert codes.schema.field("codes").type == pa.list_(pa.uint16())
    assert codes["codes"].to_pylist() == [row.tolist() for row in rows.codes]
    kept, again = pictures(tmp_path / "a"), pictures(tmp_path / "b")
    assert len(kept) == len(rows) and kept.keys() == again.keys()
    for row in rows.itertuples():
        name = f"fake_ar/{row.protocol}-{row.seed}-{row.prompt_index:05d}"
        own = torch.from_numpy(np.array(Image.open(Path(config.run_dir) / row.image)))
        assert torch.equal(kept[name], own) and torch.equal(again[name], own)
    assert main([*words, "pack.gigabytes=0.000004", f"pack.out={tmp_path / 'c'}"]) == 0
    assert len(list((tmp_path / "c").glob("*.tar"))) > 2 and pictures(tmp_path / "c").keys()


def pictures(folder: Path) -> dict[str, torch.Tensor]:
    found = {}
    for path in sorted(folder.glob("*.tar")):
        with tarfile.open(path) as tar:
            for member in tar.getmembers():
                if member.name.endswith(".png"):
                    content = BytesIO(tar.extractfile(member).read())
                    found[member.name[:-4]] = torch.from_numpy(np.array(Image.open(content)))
    return found


def test_packing_says_what_is_wrong(fake_study, capsys):
    config = fake_study("decoders=[fake_ar]", "keep_images=false")
    words = ["pack", fakes.SEARCHPATH, "study=fake", f"run_dir={config.run_dir}"]
    words += ["decoders=[fake_ar]", "keep_images=false"]
    assert main(words) == 2 and "holds no run" in capsys.readouterr().err
    run_study(config)
    assert main(words) == 2 and "pack.pictures=decoded" in capsys.readouterr().err
    assert main([*words, "pack.pictures=keep"]) == 2 and "'kept'" in capsys.readouterr().err
    assert compose_study(words[1:]).hash == config.hash
