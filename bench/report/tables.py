"""The tables of a run: decoders by section (exact, relaxed and unjudged ones with what a reader
needs, then the details of all), time over floor, and speed by batch size."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from statistics import fmean

import pandas as pd

from bench.analyse.breakdown import by_category, by_depth
from bench.analyse.families import Family, families
from bench.analyse.paired import CLIP_LESS
from bench.analyse.run import GROUPS, Entry, Role, Run, Section, group, over_declared
from bench.report.table import ABSENT, DAGGER, NOISE, Column, Row, Table, interval, number, table_of
from bench.report.timing import ar_step_ms, forward_part
from metrics.stats import Interval


def main_tables(run: Run) -> list[Table]:
    """Makes a table per section and group; AR heads each, as its decoders are compared with it."""
    tables = []
    for section in run.sections:
        ar = [] if section.baseline is None else [section.baseline]
        for name in GROUPS:
            rest = [e for e in section.entries if e.role is Role.DECODER and group(e) == name]
            if rest or (name == GROUPS[0] and ar):
                columns = _main_columns(run, section, relaxed=name != GROUPS[0])
                if any(e.word == "broken" for e in rest):
                    name = name.replace("relaxed", "relaxed or broken")
                tables.append(_table(f"{section.title}: {name}", columns, [*ar, *rest]))
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


def output_tv(entry: Entry) -> str:
    """Formats `0.264 [0.255, 0.273] ≤ 0.279 †`: the mean per committed code, its interval and
    lemma R's bound where it is another figure; 0 for an exact decoder."""
    bound = entry.number("tv_output_bound")
    if entry.exact or not math.isfinite(bound):
        return number(entry.number("tv_output"), 3)
    tv, limit = entry.interval("tv_output"), number(bound, 3)
    text = interval(tv, 3) + (f" ≤ {limit}" if limit != number(tv.value, 3) else "")
    return f"{text} {DAGGER}" if over_declared(entry) else text


def quality(section: Section, entry: Entry) -> str:
    """Formats a table's cell. An exact decoder has AR's quality however its images came out."""
    return "AR's law" if entry.exact else str(section.quality(entry) or "not compared")


def quality_tables(run: Run) -> list[Table]:
    """Makes a table per section of which more was measured than CLIP score and FID."""
    return [_quality_table(section) for section in run.sections if any(_measured(section))]


def detail_tables(run: Run) -> list[Table]:
    """Makes a table per section and kind of detail; without those of `quality_tables`."""
    tables = []
    for section in run.sections:
        tables.append(_table(f"{section.title}: parts and lengths", PARTS, section.decoders))
        tables += [] if any(_measured(section)) else [_quality_table(section)]
        tables.append(
            _table(f"{section.title}: output TV and its bounds", BOUNDS, section.decoders)
        )
    return tables


def depth_tables(run: Run) -> list[Table]:
    """Makes a table per section: of the steps that accepted a draft depth, the share that accepted
    the next one too."""
    table = by_depth(run)
    depths = range(1, 1 + int(table.depth.max())) if len(table) else range(0)
    tables = []
    for section in run.sections:
        names = [e.name for e in section.decoders if len(table) and e.name in {*table.decoder}]
        columns = [Column("decoder", lambda name: name, text=True)]
        columns += [Column(f"depth {d}", partial(_at_depth, table, d)) for d in depths]
        tables += [table_of(columns, names, section.title)] if names else []
    return tables


def _at_depth(table: pd.DataFrame, depth: int, name: str) -> str:
    """Formats `0.61 [0.58, 0.64] of 3201`: share, interval, and steps."""
    lines = table[(table.decoder == name) & (table.depth == depth)]
    if lines.empty or not lines.steps.iloc[0]:
        return ABSENT
    share = Interval(*(float(lines[f"accepted{end}"].iloc[0]) for end in ("", "_lo", "_hi")))
    return f"{interval(share, 2)} of {lines.steps.iloc[0]}"


def equal_tables(run: Run) -> list[Table]:
    """Makes a table per section and figure (output TV, loss of CLIP score): the speed-up of each
    family of decoders at equal figures."""
    tables = []
    for section in run.sections:
        found = families(run, section)
        for figure, title, levels in EQUAL:
            cells = {one.name: [one.speed_at(figure, level) for level in levels] for one in found}
            shown = [
                at for at in range(len(levels))
                if any(math.isfinite(cells[name][at].value) for name in cells)
            ]  # fmt: skip
            if not shown:
                continue
            columns = [Column("family", lambda one: one.name, text=True)]
            columns += [Column("setting", lambda one: one.setting, text=True)]
            for at in shown:
                columns.append(Column(f"{levels[at]:g}", partial(_cell_of, cells, at)))
            tables.append(table_of(columns, found, f"{section.title}: speed-up at {title}"))
    return tables


def _cell_of(cells: Mapping[str, Sequence[Interval]], at: int, one: Family) -> str:
    return interval(cells[one.name][at], 2)


def category_tables(run: Run) -> list[Table]:
    """Makes one table: decoders by category of prompt."""
    lines = by_category(run)
    return [table_of(CATEGORIES, (row for _, row in lines.iterrows()))] if len(lines) else []


def ambiguity_tables(run: Run) -> list[Table]:
    """Makes a table per section with recorded pairs: the mass of the likeliest codes and the
    entropy of target and drafter, and what the exact rule accepts."""
    tables = []
    for section in run.sections:
        known = [e for e in section.decoders if math.isfinite(e.number("target_entropy"))]
        tables += [_table(section.title, AMBIGUITY, known)] if known else []
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
    table = _table(f"{section.title}: quality", columns, section.decoders)
    of = {section.clip_name + " - AR": CLIP_LESS, section.fid_name: "fid"}
    of |= {"FID without bias": "fid_debiased", "KID": "kid"}
    if len(section.seeds("fid")) > 1:  # AR's, mean and range
        cells = [f"AR, {len(section.seeds('fid'))} seeds"]
        for heading in table.headings[1:]:
            every = section.seeds(of[heading]) if heading in of else ()
            seeds = [x for x in every if math.isfinite(x)]
            digits = 5 if heading == "KID" else 2
            ends = " to ".join(number(x, digits) for x in (min(seeds), max(seeds))) if seeds else ""
            cells.append(f"{number(fmean(seeds), digits)} ({ends})" if seeds else ABSENT)
        table = replace(table, rows=[*table.rows[:1], Row(cells, "reseed"), *table.rows[1:]])
    return table


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


def _interval_of(column: str, heading: str, digits: int) -> Column:
    def cell(line: Entry | pd.Series) -> str:
        figures = line.line if isinstance(line, Entry) else line
        return interval(Interval(*(figures[column + end] for end in ("", "_lo", "_hi"))), digits)

    return Column(heading, cell)


def _effective(of: str) -> Column:
    return Column(f"{of}'s effective codes", lambda e: number(2 ** e.number(f"{of}_entropy"), 1))


EQUAL = (
    ("tv", "an output TV of", (0.05, 0.1, 0.15, 0.2, 0.25, 0.3, 0.35, 0.4)),
    ("clip", "a loss of CLIP score of", (0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0)),
)


def _levels(entry: Entry) -> str:
    """Formats `3.32 of 5`: levels of a step's draft, mean, and what the tree allows."""
    most = entry.images["tree_depth"].max() if len(entry.images) else 0
    drafted = entry.number("drafted_depth")
    return f"{number(drafted, 2)} of {most}" if math.isfinite(drafted) else ABSENT


CATEGORIES = (
    Column("decoder", lambda line: line.decoder, text=True),
    Column("category", lambda line: line.category, text=True),
    Column("images timed", lambda line: number(line.timed, 0)),
    Column("images judged", lambda line: number(line.images, 0)),
    _interval_of("mal", "codes per forward", 2),
    _interval_of("speedup", "speed-up", 2),
    _interval_of("clip", "CLIP", 2),
)
AMBIGUITY = (
    _interval_of("target_top_1", "target's top 1", 3),
    _interval_of("target_top_10", "top 10", 3),
    _interval_of("target_top_100", "top 100", 3),
    _effective("target"),
    _interval_of("drafter_top_1", "drafter's top 1", 3),
    _effective("drafter"),
    _interval_of("alpha", "exact rule accepts", 3),
    Column("levels drafted", _levels),
    _figure("drafted_nodes", "nodes drafted", 1),
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
