"""`python -m bench leaderboard DIR`: rows of many runs, each checked, in the sections of one page.

Speed: of decoders whose verdict is exact or relaxed, over the AR of their own run and machine, one
table for each division, model, temperature and guidance. Quality: one table for each protocol, as
figures of two protocols do not compare. What has no such verdict, was replayed or failed is in a
table of its own. Last come the records: which machine and which code made them.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from bench.compare.checked import checked
from bench.config.words import with_folders
from bench.console import say
from bench.data.errors import ConfigError, FolderError
from bench.data.files import ready_file, write_text
from bench.judge.fairness import FAIR
from bench.records.kept import today
from bench.records.run_data import Entry
from bench.records.run_json import FILE, Record, read_record
from bench.report import table
from bench.report.headline import quality
from bench.report.table import ABSENT, NOISE, Column, Table, filled, interval, number, of_cells
from metrics.stats import Interval

TITLE = "Leaderboard"
TEMPLATES = Path(__file__).parent / "templates"
ENDINGS = (".html", ".csv", ".md")
TRUSTED = ("exact", "relaxed")
MISSING = "not checked"
HASH = 12  # characters of a hash
UNFAIR_NOTE = "†: the AR of that run was slower than its machine allows, or that is not known."
SPEED_NOTE = (
    "Speed-up: AR's seconds over the decoder's, each over the AR of its own run on its own "
    "machine. Seconds of two machines do not compare."
)
NOISE_NOTE = f"{NOISE}: chance can explain the difference from AR."
BAND_NOTE = (
    "Quality: in band where neither FID nor CLIP score is told apart from AR's under other seeds, "
    "else which of them is apart."
)
CHECKED_NOTE = (
    "Hashes match; nothing was measured again. What follows from the rows of a record was computed "
    "from them."
)
APART_NOTE = (
    "No verdict of the exactness gate, a broken claim, recorded "
    "acceptance, or failed images. These rows are ranked with no other."
)
SUMMARY = (
    "decoder", "model", "backend", "device", "dtype", "temperature", "cfg", "latency_mean_s",
    "speedup", "speedup_lo", "speedup_hi", "mal", "n_quality", "fid", "fid_lo", "fid_hi", "clip",
    "clip_lo", "clip_hi", "exactness", "status",
)  # fmt: skip
MARKED = ("speedup", "fid", "clip")  # figures with `<name>_is_noise`: AR might have it
OWN = (
    "record", "machine", "commit", "verdict", "unfair", *(f"{name}_is_noise" for name in MARKED),
    "quality",
)  # fmt: skip
# A decoder of a record: SUMMARY as summary.csv has it, and OWN; `protocol`: how its quality was
# measured, {} where it was not; `words`: the verdict with its figure; `where`: what may share a
# table of speed; `apart`: why it is in the section of its own, "" where it is not.
Line = dict[str, Any]


@dataclass(frozen=True)
class Section:
    """A heading with what must be known to read its table."""

    title: str
    notes: Sequence[str]
    table: Table


def cmd_leaderboard(words: Sequence[str]) -> int:
    """The records of many runs and machines on one page.
    Checks every run.json below a folder and shows all decoders on one page: speed-up over each
    machine's own AR, quality by protocol, and apart what has no verdict or is broken. A
    record with a file that is not as it was recorded is refused.
    Usage: DIR [out=FILE]
    Settings:
        out=FILE  a .html, .csv or .md (default: leaderboard.html in the folder)
    Example: leaderboard results/tables out=board.html

    Raises ConfigError, FolderError.
    """
    folders, given = with_folders(words, ("out",), "leaderboard")
    if len(folders) != 1:
        raise ConfigError(
            f"expected one folder of records, found {len(folders)}; write `leaderboard DIR`"
        )
    (folder,) = folders
    out = Path(given.get("out") or folder / "leaderboard.html").expanduser()
    if out.suffix not in ENDINGS:
        raise ConfigError(f"out={out} must end in {', '.join(ENDINGS)}: that says the format")
    lines, left_out = read_lines(folder)
    found = sections(lines, left_out)
    records = {line["record"] for line in lines}
    ready_file(out)
    say(terminal(found))
    if out.suffix == ".html":
        text = html(found, len(records))
    else:
        text = csv(lines) if out.suffix == ".csv" else markdown(found)
    write_text(out, text)
    say(f"\nleaderboard: {out} (records: {len(records)})")
    return 0


def read_lines(folder: Path) -> tuple[list[Line], list[tuple[str, str]]]:
    """The decoders of every record below a folder, and (record, why) of those that are left out.
    Raises FolderError where none is left."""
    if not folder.is_dir():
        raise FolderError(f"there is no folder {folder}; name the one that the records lie in")
    paths = sorted(folder.rglob(FILE))
    if not paths:
        raise FolderError(
            f"no {FILE} below {folder}. `python -m bench report` writes it into the folder of a "
            "finished run, and `python -m bench publish RUN DIR` copies what is shared"
        )
    lines: list[Line] = []
    left_out = []
    for path in paths:
        try:
            lines += lines_of(read_record(path), folder)
        except (FolderError, OSError) as error:
            left_out.append((str(path.parent.relative_to(folder)), str(error)))
    if not lines:
        why = "; ".join(f"{record}: {reason}" for record, reason in left_out)
        raise FolderError(f"no record below {folder} can be shown. {why}")
    return lines, left_out


def lines_of(record: Record, root: Path) -> list[Line]:
    """The decoders of a record; AR under another seed is none. Raises FolderError where its rows do
    not bear out what it says."""
    said, (run, fairness) = record.said, checked(record)
    protocols = {
        name: {k: str(v) for k, v in lines.items() if k != "decoders"}
        for lines in said["protocols"]
        for name in lines["decoders"]
    }
    place = str(record.folder.relative_to(root))
    commit = ", ".join(c[:12] for c in said["commits"]) + (" (changed)" if said["dirty"] else "")
    unfair = {f.decoder for f in fairness.values() if f.verdict != FAIR or f.mixed}
    found = []
    for section, entry in ((s, e) for s in run.sections for e in s.decoders):
        words, status = today(said["verdicts"].get(entry.name, MISSING)), entry.text("status")
        words = words if words == MISSING else entry.text("exactness") or words
        verdict = words if words == MISSING else words.split()[0]
        found.append(
            {name: entry.row[name] for name in SUMMARY}
            | {
                "record": said["study"] if place == "." else place,
                "machine": _machine(said["machine"], entry),
                "commit": commit,
                "verdict": verdict,
                "unfair": entry.name in unfair,
                "speedup_is_noise": section.speed_is_noise(entry),
                **{f"{n}_is_noise": section.quality_is_noise(entry, n) for n in MARKED[1:]},
                "quality": ABSENT if entry is section.baseline else quality(section, entry),
                "protocol": protocols.get(entry.name, {}),
                "words": words,
                "where": _where(entry),
                "apart": status if status != "ok" else "" if verdict in TRUSTED else words,
            }
        )
    return found


def _machine(machine: dict[str, Any], entry: Entry) -> str:
    device = entry.text("device")
    name = machine.get("gpu") if device.startswith("cuda") else machine.get("cpu")
    threads = "/".join(map(str, machine.get("threads", [])))
    on_cpu = f", {threads} threads" if device == "cpu" and threads else ""
    return f"{name or 'unknown'}{on_cpu}, {entry.text('backend')}, {entry.text('dtype')}"


def _where(entry: Entry) -> str:
    temperature, cfg = entry.number("temperature"), entry.number("cfg")
    sampling = "greedy" if temperature == 0 else f"temperature {number(temperature)}"
    guidance = "" if math.isnan(cfg) else f", guidance {cfg:g}"
    return f"{entry.text('model')}, {sampling}{guidance}"


def sections(lines: Sequence[Line], left_out: Sequence[tuple[str, str]] = ()) -> list[Section]:
    """Speed, quality, what stands apart (empty ones are left out), the records, and those that were
    left out with the reason."""
    kept = [line for line in lines if not line["apart"]]
    timed = [line for line in kept if not math.isnan(line["speedup"])]
    found = [_speed(own, verdict) for own in _grouped(timed, "where") for verdict in TRUSTED]
    found = [section for section in found if section.table.rows]
    for at, own in enumerate(_grouped([line for line in kept if line["protocol"]], "protocol"), 1):
        facts = "; ".join(_fact(k, v) for k, v in own[0]["protocol"].items() if v)
        notes = _noted(facts, own, MARKED[1:])
        found.append(Section(f"Quality, protocol {at}", notes, _sorted(QUALITY, own, 1)))
    apart = [line for line in lines if line["apart"]]
    if apart:
        title = "Without a verdict, or broken"
        found.append(Section(title, _noted(APART_NOTE, apart, MARKED), filled(APART, apart)))
    made = {tuple(line[key] for key in ("record", "machine", "commit")): line for line in lines}
    found.append(Section("Records", [CHECKED_NOTE], filled(RECORDS, made.values())))
    if left_out:
        found.append(Section("Left out", [], of_cells(("record", "why"), left_out)))
    return found


def _speed(lines: Sequence[Line], verdict: str) -> Section:
    """A division of what may share a table."""
    own = [line for line in lines if line["verdict"] == verdict]
    title, notes = f"Speed: {lines[0]['where']}, {verdict} division", _noted(SPEED_NOTE, own)
    if verdict == TRUSTED[0]:
        return Section(title, notes, _sorted(SPEED, own, -1))
    return Section(title, [*notes, BAND_NOTE], _sorted(RELAXED, own, -1))


def _grouped(lines: Iterable[Line], key: str) -> list[list[Line]]:
    """Lines with an equal value, in the order in which they appear."""
    groups: dict[str, list[Line]] = {}
    for line in lines:
        groups.setdefault(str(line[key]), []).append(line)
    return [*groups.values()]


def _sorted(columns: Sequence[Column], lines: Sequence[Line], sign: int) -> Table:
    """By falling speed-up (sign -1) or rising FID."""
    figure = "speedup" if sign < 0 else "fid"
    return filled(columns, sorted(lines, key=lambda line: sign * line[figure]))


def _noted(note: str, lines: Sequence[Line], marked: Sequence[str] = MARKED[:1]) -> list[str]:
    """The note, and those on the marks in a table of speed-ups, or of other figures."""
    unfair = "speedup" in marked and any(line["unfair"] for line in lines)
    noise = any(line[f"{name}_is_noise"] for line in lines for name in marked)
    return [note, *([UNFAIR_NOTE] if unfair else []), *([NOISE_NOTE] if noise else [])]


def _fact(key: str, value: str) -> str:
    """A line of a protocol; of hashes the start, in full they are in run.json."""
    return f"{key.replace('_', ' ')}: {value[:HASH] if key.endswith('sha256') else value}"


def _figure(name: str) -> Callable[[Line], str]:
    """With its interval and mark."""

    def text(line: Line) -> str:
        found = interval(Interval(*(line[name + e] for e in ("", "_lo", "_hi"))), 2)
        return f"{found} {NOISE}" if line[f"{name}_is_noise"] and found != ABSENT else found

    return text


def _speedup(line: Line) -> str:
    return _figure("speedup")(line) + (" †" if line["unfair"] else "")


NAME = (Column("decoder", "decoder", words=True), Column("record", "record", words=True))
MACHINE = Column("machine", "machine", words=True)
MODEL = Column("model", "model", words=True)
VERDICT = Column("words", "verdict", words=True)
SCORES = (Column("", "FID", _figure("fid")), Column("", "CLIP", _figure("clip")))
FASTER = Column("", "speed-up", _speedup)
SPEED = (
    *NAME, FASTER, Column("latency_mean_s", "s/image", number),
    Column("mal", "codes per forward", number), VERDICT, MACHINE,
)  # fmt: skip
RELAXED = (*SPEED[:-2], Column("quality", "quality", words=True), VERDICT, MACHINE)
QUALITY = (*NAME, MODEL, *SCORES, Column("n_quality", "images", "{:.0f}".format), VERDICT)
APART = (*NAME, MODEL, Column("apart", "why", words=True), FASTER, *SCORES)
RECORDS = (NAME[1], MACHINE, Column("commit", "commit", words=True))


def terminal(sections: Sequence[Section]) -> str:
    return "\n\n".join("\n".join([s.title, *s.notes, table.terminal(s.table)]) for s in sections)


def markdown(sections: Sequence[Section]) -> str:
    parts = [f"# {TITLE}"]
    for section in sections:
        parts += [f"## {table.escaped(section.title)}", *map(table.escaped, section.notes)]
        parts.append(table.markdown(section.table))
    return "\n\n".join(parts) + "\n"


def csv(lines: Sequence[Line]) -> str:
    """Every decoder of every record in full precision, with its protocol in a column each."""
    keys = list(dict.fromkeys(key for line in lines for key in line["protocol"]))
    return table.csv_text(
        [
            {key: line[key] for key in (*OWN, *SUMMARY)}
            | {f"protocol_{key}": line["protocol"].get(key, "") for key in keys}
            for line in lines
        ]
    )


def html(sections: Sequence[Section], records: int) -> str:
    """One page that needs no other file."""
    from bench.report.page import environment

    template = environment(TEMPLATES).get_template("leaderboard.html.j2")
    return template.render(title=TITLE, sections=sections, records=records)
