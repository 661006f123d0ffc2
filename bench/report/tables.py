"""The tables of a run: decoders by section (exact, relaxed and unjudged ones with what a reader
needs, then the details of all), time over floor, and speed by batch size."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from functools import partial

from bench.analyse.paired import CLIP_LESS
from bench.analyse.run import Entry, Role, Run, Section
from bench.report.headline import GROUPS, group, output_tv, quality
from bench.report.table import ABSENT, NOISE, Column, Row, Table, interval, number
from bench.report.timing import ar_step_ms, forward_part


def main_tables(run: Run) -> list[Table]:
    """Makes a table per section and group; AR heads each, as its decoders are compared with it."""
    tables = []
    for section in run.sections:
        ar = [e for e in section.entries if e.role is not Role.DECODER]
        for name in GROUPS:
            rest = [e for e in section.entries if e.role is Role.DECODER and group(e) == name]
            first = ar if name == GROUPS[0] else [e for e in ar if e.role is Role.BASELINE]
            if rest or (name == GROUPS[0] and ar):
                columns = _main_columns(run, section, relaxed=name != GROUPS[0])
                if any(e.word == "broken" for e in rest):
                    name = name.replace("relaxed", "relaxed or broken")
                tables.append(_table(f"{section.title}: {name}", columns, [*first, *rest]))
    return tables


def _main_columns(run: Run, section: Section, relaxed: bool) -> list[Column]:
    def speed(entry: Entry) -> str:
        mark = run.speed_mark(entry)
        if run.unmeasured(entry):
            return mark
        text = _with_interval(section, "speedup", 2, entry)
        return " ".join(filter(None, [text, mark, "(eager)" * run.eager(entry)]))

    def judged(entry: Entry) -> str:
        return ABSENT if entry.role is not Role.DECODER else quality(section, entry)

    return [
        Column("verdict", lambda entry: run.verdict(entry) or ABSENT, text=True),
        Column("speed-up", speed),
        _figure("latency_mean_s", "s/image", 3),
        _figure("mal", "codes per forward", 2),
        Column(section.clip_name, partial(_with_interval, section, "clip", 2)),
        *([Column("CLIP against AR", judged, text=True)] if relaxed else []),
        Column("output TV", output_tv),
    ]


def quality_tables(run: Run) -> list[Table]:
    """Makes a table per section of which more was measured than CLIP score and FID."""
    return [_quality_table(section) for section in run.sections if any(_measured(section))]


def detail_tables(run: Run) -> list[Table]:
    """Makes a table per section and kind of detail; without those of `quality_tables`."""
    tables = []
    for section in run.sections:
        tables.append(_table(f"{section.title}: parts and lengths", PARTS, section.entries))
        tables += [] if any(_measured(section)) else [_quality_table(section)]
        tables.append(_table(f"{section.title}: output TV and its bounds", BOUNDS, section.entries))
    return tables


def _measured(section: Section) -> list[bool]:
    """Whether a decoder of the section has a figure, of each of `MORE`."""
    return [any(not math.isnan(e.number(name)) for e in section.entries) for name in MORE]


def _quality_table(section: Section) -> Table:
    figure = partial(_with_interval, section)
    columns = [
        _figure("n_quality", "images judged", 0),
        Column(f"{section.clip_name} - AR", lambda e: interval(e.interval(CLIP_LESS), 2)),
        Column(section.fid_name, partial(figure, "fid", 2)),
        Column("FID without bias", partial(figure, "fid_debiased", 2)),
    ]
    measured = _measured(section)
    for (name, (heading, digits)), there in zip(MORE.items(), measured, strict=True):
        if there or (name == "kid" and not any(measured)):
            columns.append(Column(heading, partial(figure, name, digits)))
    return _table(f"{section.title}: quality", columns, section.entries)


def _table(title: str, columns: Sequence[Column], entries: Sequence[Entry]) -> Table:
    columns = [Column("decoder", lambda entry: entry.label, text=True), *columns]
    rows = []
    for entry in entries:
        if entry.failed:
            rows.append(Row([entry.label, "failed", *[""] * (len(columns) - 2)], "failed"))
        else:
            rows.append(Row([column.cell(entry) for column in columns], entry.role.value))
    return Table(title, columns, rows)


def _with_interval(section: Section, column: str, digits: int, entry: Entry) -> str:
    """Formats `1.82 [1.75, 1.90]`, with the noise mark where it applies."""
    text = interval(entry.interval(column), digits)
    return f"{text} {NOISE}" if text != ABSENT and section.is_noise(entry, column) else text


def _figure(column: str, heading: str, digits: int) -> Column:
    return Column(heading, lambda entry: number(entry.number(column), digits))


def _over_blocks(entry: Entry) -> str:
    """Formats `1.42 to 1.81 (20)`: least and greatest speed-up of a block, and how many blocks."""
    least, greatest, count = (
        entry.number(f"speedup_{name}") for name in ("least", "greatest", "blocks")
    )
    if entry.role is not Role.DECODER or math.isnan(least):
        return ABSENT
    return f"{number(least, 2)} to {number(greatest, 2)} ({count:.0f})"


MORE = {  # figures of quality besides CLIP score and FID: heading and digits
    "kid": ("KID", 5), "precision": ("precision", 3), "recall": ("recall", 3), "hps": ("HPS", 2),
}  # fmt: skip
PARTS = (
    Column("acceptance", lambda entry: entry.text("acceptance") or ABSENT, text=True),
    Column("tree", lambda entry: entry.text("tree") or ABSENT, text=True),
    Column("speed-up over blocks", _over_blocks),
    _figure("n_latency", "images timed", 0),
    _figure("nfe", "NFE", 1),
    _figure("mal_expected", "codes expected", 2),
    _figure("peak_memory_mb", "peak MB", 0),
)
BOUNDS = (
    _figure("tv_tested", "TV, tested codes", 3),
    _figure("tv_declared_bound", "declared bound", 3),
    _figure("tv_shift_mean", "TV(p, p_A), mean", 4),
    _figure("tv_shift_max", "TV(p, p_A), max", 3),
    _figure("tv_bound", "its bound, max", 3),
)


def roofline_tables(run: Run) -> list[Table]:
    """Makes one table per section that has a line in the roofline."""
    tables = []
    for section in run.sections:
        ar, rows = ar_step_ms(run, section), []
        for entry in section.decoders:
            if entry.failed or entry.name not in run.roofline:
                continue
            line = run.roofline[entry.name]
            part = forward_part(line)
            figures = ("ms", "floor_ms", "over_floor")
            line = line | {f"forward_{name}": line[f"{part}_{name}"] for name in figures}
            line |= {f"{name}_ar_steps": line[f"{name}_ms"] / ar for name in ("step", "forward")}
            rows.append(Row([column.cell(line) for column in ROOFLINE], entry.role.value))
        if rows:
            tables.append(Table(section.title, ROOFLINE, rows))
    return tables


def _of_line(key: str, heading: str, text: Callable[[float], str] = number) -> Column:
    return Column(heading, lambda line: text(line[key]))


def _times(value: float) -> str:
    return ABSENT if math.isnan(value) else f"{value:.1f} x"


RATIO = partial(number, digits=2)
ROOFLINE = (
    Column("decoder", lambda line: line["decoder"]),
    Column("codes", lambda line: number(line["codes"], 0)),
    _of_line("step_ms", "step ms"),
    _of_line("step_ar_steps", "step in AR steps", RATIO),
    _of_line("step_over_floor", "step over floor", _times),
    _of_line("forward_ms", "forward ms"),
    _of_line("forward_ar_steps", "forward in AR steps", RATIO),
    _of_line("forward_floor_ms", "floor ms"),
    _of_line("forward_over_floor", "over floor", _times),
    _of_line("draft_ms", "draft call ms"),
)


BATCHES = (  # of `timing.Line`
    Column("batch", lambda x: f"{x.batch}"),
    Column("decoder", lambda x: x.decoder),
    Column("images/s", lambda x: "failed" if x.error else interval(x.images_s, 2)),
    Column("latency, s", lambda x: interval(x.latency_s, 3)),
    Column("speed-up at this batch", lambda x: interval(x.speedup, 2)),
    Column("codes per forward", lambda x: number(x.mal, 2)),
    Column("forwards per call", lambda x: number(x.forwards_a_call, 1)),
    Column("idle, %", lambda x: number(100 * x.idle, 1)),
    Column("peak MB", lambda x: number(x.peak_memory_mb, 0)),
)
