"""Rows of many runs, each checked, in the sections of one page.

Speed: of decoders whose verdict is exact or bounded, over the AR of their own run and machine, one
table for each model, temperature and guidance. Quality: one table for each protocol, as figures of
two protocols do not compare. What has no such verdict, violates its bound, was replayed or failed
is in a table of its own. Last come the records: which machine and which code made them.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pandas as pd

from bench.errors import FolderError
from bench.judge.reseeds import reseed_of
from bench.report.table import Column, Table, filled, interval, number
from bench.share.record import FILE, Record, read_record
from metrics.stats import Interval

TRUSTED = ("exact", "bounded")
MISSING = "not checked"
TEXTS = ("model", "decoder", "backend", "device", "dtype", "exactness", "status")
NUMBERS = (
    "temperature", "cfg", "latency_mean_s", "speedup", "speedup_lo", "speedup_hi", "mal",
    "n_quality", "fid", "fid_lo", "fid_hi", "clip", "clip_lo", "clip_hi",
)  # fmt: skip
BLANK = ("", "nan")
HASH = 12  # characters of a hash
UNFAIR_NOTE = "†: the AR of that run was slower than its machine allows."
NOT_A_LINE = ("decoders",)


@dataclass(frozen=True)
class Line:
    """One decoder of one record. protocol: how its quality was measured, () where it was not."""

    record: str
    machine: str
    commit: str
    verdict: str
    words: str  # the verdict with its figure
    row: dict[str, Any]
    protocol: tuple[tuple[str, str], ...]
    unfair: bool

    @property
    def decoder(self) -> str:
        return str(self.row["decoder"])

    @property
    def where(self) -> str:
        """What may share a table of speed: model, temperature, guidance."""
        temperature, cfg = self.row["temperature"], self.row["cfg"]
        greedy = "greedy" if temperature == 0 else f"temperature {number(temperature)}"
        return f"{self.row['model']}, {greedy}" + ("" if math.isnan(cfg) else f", guidance {cfg:g}")

    @property
    def speedup(self) -> Interval:
        return self._interval("speedup")

    @property
    def fid(self) -> Interval:
        return self._interval("fid")

    @property
    def clip(self) -> Interval:
        return self._interval("clip")

    def _interval(self, name: str) -> Interval:
        return Interval(*(self.row[name + end] for end in ("", "_lo", "_hi")))

    @property
    def why_apart(self) -> str:
        """Why it is in the section of its own; "" where it is not."""
        if self.row["status"] != "ok":
            return str(self.row["status"])
        return "" if self.verdict in TRUSTED else self.words


@dataclass(frozen=True)
class Section:
    """A heading with what must be known to read its table."""

    title: str
    notes: Sequence[str]
    table: Table


def records_in(folder: Path) -> list[Record]:
    """Every record below a folder, all checked. Raises FolderError with the file's name."""
    if not folder.is_dir():
        raise FolderError(f"there is no folder {folder}; name the one that the records lie in")
    paths = sorted(folder.rglob(FILE))
    if not paths:
        raise FolderError(
            f"no {FILE} below {folder}. `python -m bench report` writes it into the folder of a "
            "finished run, and `python -m bench publish RUN DIR` copies what is shared"
        )
    return [read_record(path) for path in paths]


def lines_of(record: Record, root: Path) -> list[Line]:
    """The decoders of a record; AR under another seed is none."""
    path = record.folder / "summary.csv"
    table = pd.read_csv(path, dtype=str, keep_default_na=False)
    lacking = [name for name in (*TEXTS, *NUMBERS) if name not in table]
    if lacking:
        raise FolderError(f"{path} lacks the columns {', '.join(lacking)}; run the study again")
    try:
        for name in NUMBERS:
            table[name] = table[name].mask(table[name].isin(BLANK)).astype(float)
    except ValueError as error:
        raise FolderError(f"{path}: column {name} holds a non-number ({error})") from error
    said = record.said
    protocols = {
        name: tuple((k, str(v)) for k, v in lines.items() if k not in NOT_A_LINE)
        for lines in said["protocols"]
        for name in lines["decoders"]
    }
    place = str(record.folder.relative_to(root))
    commit = ", ".join(c[:12] for c in said["commits"]) + (" (changed)" if said["dirty"] else "")
    unfair = _unfair(record.folder / "fairness.csv")
    found = []
    for row in table.to_dict("records"):
        name = str(row["decoder"])
        if reseed_of(name):
            continue
        verdict = said["verdicts"].get(name, MISSING)
        found.append(
            Line(
                said["study"] if place == "." else place,
                _machine(said["machine"], row),
                commit,
                verdict,
                verdict if verdict == MISSING else str(row["exactness"]) or verdict,
                {str(k): v for k, v in row.items()},
                protocols.get(name, ()),
                name in unfair,
            )
        )
    return found


def sections(lines: Sequence[Line]) -> list[Section]:
    """Speed, quality, what stands apart (empty ones are left out), and the records."""
    apart = [line for line in lines if line.why_apart]
    kept = [line for line in lines if not line.why_apart]
    return [*_speed(kept), *_quality(kept), *_apart(apart), _records(lines)]


def _speed(lines: Sequence[Line]) -> list[Section]:
    timed = [line for line in lines if not math.isnan(line.speedup.value)]
    return [
        Section(f"Speed: {where}", _said(own), filled(SPEED, sorted(own, key=_fastest)))
        for where, own in _grouped(timed, lambda line: line.where)
    ]


def _said(lines: Sequence[Line]) -> list[str]:
    """How to read a table of speed-ups."""
    note = (
        "Speed-up: AR's seconds over the decoder's, each over the AR of its own run on its own "
        "machine. Seconds of two machines do not compare."
    )
    return [note, UNFAIR_NOTE] if any(line.unfair for line in lines) else [note]


def _fastest(line: Line) -> float:
    return -line.speedup.value


def _quality(lines: Sequence[Line]) -> list[Section]:
    scored = [line for line in lines if line.protocol]
    found = []
    for number_, (protocol, own) in enumerate(_grouped(scored, lambda line: line.protocol), 1):
        notes = ["; ".join(_fact(key, value) for key, value in protocol if value)]
        ordered = sorted(own, key=lambda line: line.fid.value)
        found.append(Section(f"Quality, protocol {number_}", notes, filled(QUALITY, ordered)))
    return found


def _fact(key: str, value: str) -> str:
    """A line of a protocol; of hashes the start, in full they are in run.json."""
    return f"{key.replace('_', ' ')}: {value[:HASH] if key.endswith('sha256') else value}"


def _apart(lines: Sequence[Line]) -> list[Section]:
    if not lines:
        return []
    note = (
        "No verdict of the exactness gate, a verdict that violates the declared bound, recorded "
        "acceptance, or failed images. These rows are ranked with no other."
    )
    notes = [note, UNFAIR_NOTE] if any(line.unfair for line in lines) else [note]
    return [Section("Without a verdict, or violating it", notes, filled(APART, lines))]


def _records(lines: Sequence[Line]) -> Section:
    """Where each record was made, and by which code."""
    made = {(line.record, line.machine, line.commit): line for line in lines}
    return Section("Records", [], filled(RECORDS, made.values()))


def _grouped(lines: Sequence[Line], key: Any) -> Iterable[tuple[Any, list[Line]]]:
    groups: dict[Any, list[Line]] = {}
    for line in lines:
        groups.setdefault(key(line), []).append(line)
    return groups.items()


def _machine(machine: dict[str, Any], row: Mapping[Any, Any]) -> str:
    name = machine.get("gpu") if str(row["device"]).startswith("cuda") else machine.get("cpu")
    threads = "/".join(map(str, machine.get("threads", [])))
    on_cpu = f", {threads} threads" if str(row["device"]) == "cpu" and threads else ""
    return f"{name or 'unknown'}{on_cpu}, {row['backend']}, {row['dtype']}"


def _unfair(path: Path) -> set[str]:
    from bench.judge.fairness import UNFAIR

    if not path.is_file():
        return set()
    found = pd.read_csv(path, dtype=str, keep_default_na=False)
    return set(found.decoder[(found.verdict == UNFAIR) | (found.mixed != "")])


def _mark(line: Line) -> str:
    return interval(line.speedup, 2) + (" †" if line.unfair else "")


NAME = (Column("decoder", "decoder", words=True), Column("record", "record", words=True))
MACHINE = Column("machine", "machine", words=True)
VERDICT = Column("words", "verdict", words=True)
SPEED = (
    *NAME,
    Column("", "speed-up", _mark),
    Column("row", "s/image", lambda row: number(row["latency_mean_s"])),
    Column("row", "codes per forward", lambda row: number(row["mal"])),
    VERDICT,
    MACHINE,
)
QUALITY = (
    *NAME,
    Column("row", "model", lambda row: str(row["model"]), words=True),
    Column("fid", "FID", lambda found: interval(found, 2)),
    Column("clip", "CLIP", lambda found: interval(found, 2)),
    Column("row", "images", lambda row: f"{row['n_quality']:.0f}"),
    VERDICT,
)
APART = (
    *NAME,
    Column("row", "model", lambda row: str(row["model"]), words=True),
    Column("why_apart", "why", words=True),
    Column("", "speed-up", _mark),
    Column("fid", "FID", lambda found: interval(found, 2)),
    Column("clip", "CLIP", lambda found: interval(found, 2)),
)
RECORDS = (NAME[1], MACHINE, Column("commit", "commit", words=True))
