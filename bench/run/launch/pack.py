"""`python -m bench pack study=...`: a finished run in few large files.

    codes.parquet         a row per image: decoder, protocol, seed, prompt, codes (uint16)
    pictures-00000.tar    WebDataset's layout: <decoder>/<protocol>-<seed>-<prompt>.png, .txt, .json

Why: half a million small files are slow to copy, and some file systems refuse them. Codes are what
an image is, in a few hundred bytes; the pictures are theirs through the model's tokenizer, so they
can be decoded again at will (pack.pictures=decoded), also where a run kept none.
"""

from __future__ import annotations

import io
import json
import tarfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from bench.config.hydra_edge import own_settings
from bench.console import progress, say
from bench.data.errors import ConfigError, FolderError
from bench.data.files import refuse_links, write_atomically
from bench.records.load import plain, read_rows
from decoders.kinds import Positive, require

if TYPE_CHECKING:
    from bench.config.schema import StudyConfig

NAMED = ("decoder", "protocol", "seed", "prompt_index", "prompt_id", "prompt")
Row = dict[str, Any]  # of records.parquet
MOST = np.iinfo(np.uint16).max
Pictures = Literal["kept", "decoded", "none"]
CODES, TAR = "codes.parquet", "pictures-{:05d}.tar"


@dataclass(frozen=True)
class PackSettings:
    """`pack.*`."""

    pictures: Pictures = "kept"  # NAME kept (the run's own), decoded (again, from the codes), none
    gigabytes: Positive = 1.0  # size of a tar file
    out: str | None = None  # DIR where they go (default: packed/ in the run's folder)

    def __post_init__(self) -> None:
        require(self, "pack.", ConfigError)


def cmd_pack(words: Sequence[str]) -> int:
    """A run's codes as uint16 Parquet, its pictures as tar shards; decode them again.
    Both are lossless, the tar files in WebDataset's layout. Takes the words of the run.
    Settings: study decoders run_dir ...
        pack.*  bench/run/launch/pack.py PackSettings
    Example: pack study=smoke pack.pictures=decoded

    Raises ConfigError, FolderError where the run is not finished, or has lost a picture.
    """
    from bench.config.compose import compose_study

    settings, rest = own_settings(PackSettings, "pack", words)
    config = compose_study(rest)
    run = Path(config.run_dir)
    out = Path(settings.out).expanduser() if settings.out else run / "packed"
    rows = rows_of(config)
    for old in out.glob("pictures-*.tar"):  # of another time, maybe of more images
        old.unlink()
    write_codes(out / CODES, rows)
    say(f"{out / CODES}: the codes of {len(rows):,} images")
    if settings.pictures == "none":
        return 0
    drawn = kept(run, rows) if settings.pictures == "kept" else decoded(config, rows)
    with progress(len(rows), "pictures") as bar:
        write_tars(out, int(settings.gigabytes * 1e9), drawn, bar)
    for path in sorted(out.glob("pictures-*.tar")):
        say(f"{path}: {path.stat().st_size / 1e6:,.1f} MB")
    return 0


def rows_of(config: StudyConfig) -> list[Row]:
    """The images of a finished run that came out, each once however often it was timed."""
    from bench.records.study import require_own

    run = Path(config.run_dir)
    require_own(run, config)
    refuse_links(run)  # a link would put a file of another folder into the tar
    table = read_rows(run, (*NAMED, "schema_version", "status", "image", "codes"))
    rows = table[table.status == "ok"].assign(codes=table.codes.map(np.ndarray.tolist))
    rows["image"] = rows.groupby([*NAMED[:4]]).image.transform("max")  # of the round it was kept in
    return plain(rows.drop_duplicates([*NAMED[:4]]))


def write_codes(path: Path, rows: Sequence[Row]) -> None:
    """Raises FolderError for a code that 16 bits do not hold."""
    most = max((max(row["codes"]) for row in rows), default=0)
    if most > MOST:
        raise FolderError(f"a code is {most}, and uint16 holds at most {MOST}; nothing was packed")
    columns: dict[str, Any] = {name: [row[name] for row in rows] for name in NAMED}
    columns["codes"] = pa.array([row["codes"] for row in rows], pa.list_(pa.uint16()))
    table = pa.table(columns)
    write_atomically(path, lambda file: pq.write_table(table, file, compression="zstd"))


def kept(run: Path, rows: Sequence[Row]) -> Iterator[tuple[Row, bytes]]:
    """Pictures as the run has them. Raises FolderError where there is none."""
    lost = [row for row in rows if not row["image"] or not (run / row["image"]).is_file()]
    if lost:
        raise FolderError(
            f"{run} has no picture of {len(lost)} of {len(rows)} images (keep_images=false?); "
            "pack.pictures=decoded makes them from the codes"
        )
    for row in rows:
        yield row, (run / row["image"]).read_bytes()


def decoded(config: StudyConfig, rows: Sequence[Row]) -> Iterator[tuple[Row, bytes]]:
    """Pictures of the codes, through the study's tokenizer."""
    import torch

    from bench.measure.device import prepare
    from bench.run.outcome import drawn, picture_of, quantised
    from bench.run.session import load_model

    model = load_model(config, prepare(config.backend))
    if not model.draws:
        raise ConfigError(f"{config.model.name} has no tokenizer here, so it draws nothing")
    size = config.quality.batch
    for start in range(0, len(rows), size):
        part = rows[start : start + size]
        codes = torch.tensor([row["codes"] for row in part], device=model.device)  # [B, L]
        with torch.inference_mode():
            pixels = quantised(drawn(model, codes))  # [B, 3, H, W] uint8
        for row, image in zip(part, pixels, strict=True):
            content = io.BytesIO()
            picture_of(image).save(content, format="PNG")
            yield row, content.getvalue()


def write_tars(out: Path, most: int, drawn: Iterator[tuple[Row, bytes]], bar: Any) -> None:
    """Pictures in tar files of at most so many bytes (and one picture). A file has its name once it
    is whole; equal pictures make equal files."""
    out.mkdir(parents=True, exist_ok=True)
    part, number, one = out / ".tmp-pictures.tar", 0, next(drawn, None)
    try:
        while one is not None:
            with tarfile.open(part, "w") as tar:
                while one is not None and tar.offset < most:
                    _add(tar, *one)
                    bar.update()
                    one = next(drawn, None)
            part.replace(out / TAR.format(number))
            number += 1
    finally:
        part.unlink(missing_ok=True)


def _add(tar: tarfile.TarFile, row: Row, png: bytes) -> None:
    """A picture with its prompt and what it is."""
    name = f"{row['decoder']}/{row['protocol']}-{row['seed']}-{row['prompt_index']:05d}"
    about = json.dumps({key: row[key] for key in NAMED}, ensure_ascii=False)
    files = {"png": png, "txt": row["prompt"].encode(), "json": about.encode()}
    for ending, content in files.items():
        member = tarfile.TarInfo(f"{name}.{ending}")
        member.size = len(content)
        tar.addfile(member, io.BytesIO(content))
