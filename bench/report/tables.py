"""The tables of a report: `bench.analyse` has the figures and the order of their columns, here they
are written as texts.

`WRITERS` has the figures that are written in another way than as a number with its interval.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from operator import itemgetter
from statistics import fmean
from typing import Any

import numpy as np

from bench.analyse import figures
from bench.analyse.breakdown import BY_CATEGORY
from bench.analyse.fairness import UNMEASURED
from bench.analyse.figures import BY_NAME, INTERVAL, TEXT, Figure
from bench.analyse.run import DIVISIONS, Entry, Role, Run, Section
from bench.report.table import (
    ABSENT,
    DAGGER,
    NOISE,
    Column,
    Row,
    Table,
    digits_of,
    interval,
    number,
    table_of,
)
from metrics.stats import NOT_TOLD, Interval

Line = Mapping[str, Any]  # of a table of the run


def main_tables(run: Run) -> list[Table]:
    """Makes a table per section and division; AR heads each, as its decoders are compared with
    it."""
    tables = []
    for section in run.sections:
        ar = [] if section.baseline is None else [section.baseline]
        for name in DIVISIONS:
            rest = [e for e in section.entries if e.role is Role.DECODER and e.division == name]
            if rest or (name == DIVISIONS[0] and ar):
                columns = _columns(run, section, figures.MAIN)
                if name != DIVISIONS[0]:
                    judged = partial(_against_ar, section)
                    columns.insert(-1, Column("CLIP against AR", judged, text=True))
                if any(e.word == "broken" for e in rest):
                    name = name.replace("relaxed", "relaxed or broken")
                tables.append(_table(f"{section.title}: {name}", columns, [*ar, *rest]))
    return tables


def quality_tables(run: Run) -> list[Table]:
    """Makes a table per section with quality figures: those that were measured, and AR's mean and
    range over its seeds."""
    tables = []
    for section in run.sections:
        known = [
            _with_digits(section, figure)
            for figure in _group(run, figures.QUALITY)
            if any(math.isfinite(entry.number(figure.name)) for entry in section.entries)
        ]
        if not any(figure.kind == INTERVAL for figure in known):
            continue
        columns = [_column(run, section, figure) for figure in known]
        table = _table(f"{section.title}: quality", columns, section.decoders)
        if (count := len(section.seeds("fid"))) > 1:
            cells = [_over_seeds(section, f) if f.kind == INTERVAL else ABSENT for f in known]
            seeds = Row([f"AR, {count} seeds", *cells], "reseed")
            table = replace(table, rows=[*table.rows[:1], seeds, *table.rows[1:]])
        tables.append(table)
    return tables


def detail_tables(run: Run) -> list[Table]:
    """Makes a table per section and kind of detail."""
    titles = {figures.PARTS: "parts and lengths", figures.BOUNDS: "output TV and its bounds"}
    return [
        _table(f"{section.title}: {title}", _columns(run, section, group), section.decoders)
        for section in run.sections
        for group, title in titles.items()
    ]


def ambiguity_tables(run: Run) -> list[Table]:
    """Makes a table per section with recorded pairs: the mass of the likeliest codes and the
    entropy of target and drafter, and what the exact rule accepts."""
    tables = []
    for section in run.sections:
        known = [e for e in section.decoders if math.isfinite(e.number("target_entropy"))]
        columns = _columns(run, section, figures.AMBIGUITY)
        tables += [_table(section.title, columns, known)] if known else []
    return tables


def depth_tables(run: Run) -> list[Table]:
    """Makes a table per section: of the steps that accepted a draft depth, the share that accepted
    the next one too."""
    depths = sorted({line["depth"] for line in run.lines("depths")})
    tables = []
    for section in run.sections:
        by_depth = {(line["decoder"], line["depth"]): line for line in run.lines("depths", section)}
        names = dict.fromkeys(name for name, _ in by_depth)
        columns = [Column("decoder", str, text=True, names=True)]
        columns += [Column(f"depth {d}", partial(_at_depth, by_depth, d)) for d in depths]
        tables += [table_of(columns, names, section.title)] if names else []
    return tables


def _at_depth(lines: Mapping[tuple[str, int], Line], depth: int, name: str) -> str:
    """Formats `0.61 [0.58, 0.64] of 3201`: share, interval, and steps."""
    line = lines.get((name, depth))
    if line is None or not line["steps"]:
        return ABSENT
    return f"{interval(_interval(line, 'accepted'), 2)} of {line['steps']}"


def reliability_tables(run: Run) -> list[Table]:
    """Makes a table per section with a drafter that states its confidence: by decoder and depth,
    confidence and accepted share."""
    columns = [
        Column("decoder", itemgetter("decoder"), text=True, names=True),
        Column("depth", lambda one: f"{one['depth']}"),
        Column("drafts tested", lambda one: f"{one['drafts']}"),
        Column("confidence, mean", lambda one: number(one["predicted"], 3)),
        Column("accepted share", lambda one: number(one["accepted"], 3)),
        Column("calibration error", lambda one: number(one["error"], 3)),
    ]
    found = [(section.title, run.lines("reliability", section)) for section in run.sections]
    return [table_of(columns, lines, title) for title, lines in found if lines]


def equal_tables(run: Run) -> list[Table]:
    """Makes a table per section and figure (output TV, loss of CLIP score): the speed-up of each
    family of decoders at equal figures."""
    tables = []
    for section in run.sections:
        for figure, title in EQUAL.items():
            lines = [x for x in run.lines("equal_loss", section) if x["figure"] == figure]
            levels = sorted({x["level"] for x in lines if math.isfinite(x["speedup"])})
            if not levels:
                continue
            columns = [Column("family", itemgetter(0), text=True, names=True)]
            columns += [Column("setting", itemgetter(1), text=True)]
            columns += [Column(f"{x:g}", itemgetter(at)) for at, x in enumerate(levels, 2)]
            cells = {(x["family"], x["level"]): _equal_cell(x) for x in lines}
            rows = [
                (family, setting, *(cells[family, level] for level in levels))
                for family, setting in dict.fromkeys((x["family"], x["setting"]) for x in lines)
            ]
            tables.append(table_of(columns, rows, f"{section.title}: speed-up at {title}"))
    return tables


def within_tables(run: Run) -> list[Table]:
    """Makes a table per section with a relaxed decoder: the fastest one by the output TV that it
    may have, or AR."""
    tables = []
    for section in run.sections:
        entries = {entry.name: entry for entry in section.entries}
        columns = [
            Column("output TV at most", lambda one: f"{one['at_most']:g}"),
            Column("fastest", itemgetter("fastest"), text=True, names=True),
            Column("speed-up", partial(_speed_of_fastest, run, section, entries)),
            Column("its output TV", partial(_tv_of_fastest, entries)),
            Column("not told apart from it", lambda one: one["or_"] or ABSENT, True, names=True),
        ]
        lines = run.lines("fastest_within", section)
        relaxed = [e for e in section.decoders if e.division == DIVISIONS[1]]
        if lines and any(math.isfinite(e.number("tv_output")) for e in relaxed):
            tables.append(table_of(columns, lines, f"{section.title}: fastest within an output TV"))
    return tables


def _speed_of_fastest(run: Run, section: Section, entries: Mapping[str, Entry], line: Line) -> str:
    return _speed(run, section, entries[line["fastest"]])


def _tv_of_fastest(entries: Mapping[str, Entry], line: Line) -> str:
    entry = entries[line["fastest"]]
    return "0" if entry.role is Role.BASELINE else output_tv(entry)


def projected_tables(run: Run) -> list[Table]:
    """Makes a table per section: what its decoders would gain at stated costs of a forward, the
    fastest first; where that is not known, the one whose forward may cost the most."""
    columns = [
        Column("decoder", itemgetter("decoder"), text=True, names=True),
        Column("verdict", lambda one: f"{one['verdict'] or 'not judged'}, projected", text=True),
        Column("speed-up, projected", _projected_speed),
        Column("codes per forward", lambda one: interval(_interval(one, "mal"), 2)),
        Column("codes verified", lambda one: f"{one['codes']}"),
        Column("forward in AR steps", lambda one: number(one["forward_ar_steps"], 2)),
        Column("drafting in AR steps", lambda one: number(one["draft_ar_steps"], 2)),
        Column("pays below, AR steps", lambda one: number(one["break_even_ar_steps"], 2)),
    ]
    tables = []
    for section in run.sections:
        lines = run.lines("projected", section)
        lines.sort(key=lambda one: (-np.nan_to_num(one["speedup"]), -one["break_even_ar_steps"]))
        tables += [table_of(columns, lines, section.title)] if lines else []
    return tables


def _projected_speed(line: Line) -> str:
    text = interval(_interval(line), 2)
    return f"≤ {text}" if line["at_most"] and text != ABSENT else text


def _equal_cell(line: Line) -> str:
    """Formats a speed-up at equal loss; *not told* where the settings around it do not tell."""
    unknown = line["met"] and math.isnan(line["speedup"])
    return NOT_TOLD if unknown else interval(_interval(line), 2)


EQUAL = {"tv": "an output TV of", "clip": "a loss of CLIP score of"}


def category_tables(run: Run) -> list[Table]:
    """Makes one table: decoders by category of prompt."""
    columns = [Column("decoder", itemgetter("decoder"), text=True, names=True)]
    columns += [Column("category", itemgetter("category"), text=True)]
    columns += [_of_line(BY_NAME[name]) for name in BY_CATEGORY]
    lines = run.lines("categories")
    return [table_of(columns, lines)] if lines else []


def roofline_tables(run: Run) -> list[Table]:
    """Makes one table per section that has a line in the roofline."""
    tables = []
    columns = [Column("decoder", itemgetter("decoder"), names=True)]
    columns += map(_of_line, figures.ROOFLINE)
    for section in run.sections:
        lines = run.lines("roofline", section)
        roles = {entry.name: entry.role.value for entry in section.entries}
        rows = [Row([c.cell(line) for c in columns], roles[line["decoder"]]) for line in lines]
        tables += [Table(section.title, columns, rows)] if rows else []
    return tables


def batch_tables(run: Run) -> list[Table]:
    """Makes one table: decoders by batch size. A speed-up has the marks of the main table."""
    entries = {entry.name: entry for entry in run.entries}

    def images_per_second(line: Line) -> str:
        return "failed" if line["error"] else interval(_interval(line, "images_s"), 2)

    def speed(line: Line) -> str:
        if line["error"]:
            return ABSENT
        if line["unmeasured"]:
            return run.numbered((UNMEASURED, line["unmeasured"]))
        mark = run.speed_mark(entries[line["decoder"]])
        return " ".join(filter(None, [interval(_interval(line), 2), mark]))

    writers = {"images_s": images_per_second, "speedup": speed}
    columns = [
        Column(figure.heading, writers[figure.name]) if figure.name in writers else _of_line(figure)
        for figure in figures.BATCHES
    ]
    lines = sorted(run.lines("batches"), key=itemgetter("batch"))
    return [table_of(columns, lines, "By batch size")] if lines else []


# ---- cells ------------------------------------------------------------------------------------


def _group(run: Run, group: str) -> list[Figure]:
    """The figures of a table, in their order."""
    return sorted((f for f in run.figures if f.group == group), key=lambda figure: figure.rank)


def _with_digits(section: Section, figure: Figure) -> Figure:
    """A figure whose decimals its widest interval of a section allows has them in all cells."""
    if figure.digits is not None or figure.kind != INTERVAL:
        return figure
    return replace(figure, digits=digits_of(e.interval(figure.name) for e in section.entries))


def _columns(run: Run, section: Section, group: str) -> list[Column]:
    return [_column(run, section, figure) for figure in _group(run, group)]


def _column(run: Run, section: Section, figure: Figure) -> Column:
    """The column of a figure in a table of entries."""
    write = WRITERS.get(figure.name)
    heading = figure.heading.format(fid=section.fid_name, clip=section.clip_name)

    def cell(entry: Entry) -> str:
        return write(run, section, entry) if write else plain(section, figure, entry)

    return Column(heading, cell, text=figure.kind == TEXT)


def plain(section: Section, figure: Figure, entry: Entry) -> str:
    """Formats `1.82 [1.75, 1.90]`, with the noise mark where it applies."""
    if figure.kind == TEXT:
        return entry.text(figure.name) or ABSENT
    text = interval(entry.interval(figure.name), figure.digits)
    return f"{text} {NOISE}" if text != ABSENT and section.is_noise(entry, figure.name) else text


def _of_line(figure: Figure) -> Column:
    """The column of a figure in a table of lines, each a mapping of names to values."""
    heading = figure.heading.format(fid="FID", clip="CLIP")

    def cell(line: Line) -> str:
        if figure.kind == TEXT:
            return str(line[figure.name])
        if figure.kind == INTERVAL:
            return interval(_interval(line, figure.name), figure.digits)
        text = number(line[figure.name], figure.digits)
        return f"{text} x" if figure.unit == "floors" and text != ABSENT else text

    return Column(heading, cell, names=figure.name == "decoder")


def _interval(line: Line, name: str = "speedup") -> Interval:
    return Interval(*(line[name + end] for end in ("", "_lo", "_hi")))


def _table(title: str, columns: Sequence[Column], entries: Sequence[Entry]) -> Table:
    columns = [Column("decoder", lambda entry: entry.label, text=True, names=True), *columns]
    rows = []
    for entry in entries:
        if entry.failed:
            rows.append(Row([entry.label, "failed", *[""] * (len(columns) - 2)], "failed"))
        else:
            rows.append(Row([column.cell(entry) for column in columns], entry.role.value))
    return Table(title, columns, rows)


def _over_seeds(section: Section, figure: Figure) -> str:
    """Formats `21.53 (21.40 to 21.66)`: AR's mean over its seeds, and the range."""
    known = [value for value in section.seeds(figure.name) if math.isfinite(value)]
    if not known:
        return ABSENT
    mean, least, greatest = (number(of(known), figure.digits) for of in (fmean, min, max))
    return f"{mean} ({least} to {greatest})"


def _against_ar(section: Section, entry: Entry) -> str:
    if entry.role is not Role.DECODER:
        return ABSENT
    return "AR's law" if entry.exact else str(section.quality(entry) or "not compared")


def _speed(run: Run, section: Section, entry: Entry) -> str:
    mark = run.speed_mark(entry)
    if run.unmeasured(entry):
        return mark
    text = plain(section, BY_NAME["speedup"], entry)
    return " ".join(filter(None, [text, mark, "(eager)" * run.eager(entry)]))


def output_tv(entry: Entry) -> str:
    """Formats `0.264 [0.255, 0.273] ≤ 0.279 †`: the mean per committed code, its interval and
    lemma R's bound where it is another figure; 0 for an exact decoder."""
    bound = entry.number("tv_output_bound")
    if entry.exact or not math.isfinite(bound):
        return number(entry.number("tv_output"), 3)
    tv, limit = entry.interval("tv_output"), number(bound, 3)
    text = interval(tv, 3) + (f" ≤ {limit}" if limit != number(tv.value, 3) else "")
    return f"{text} {DAGGER}" if entry.over_declared else text


def _over_blocks(run: Run, section: Section, entry: Entry) -> str:
    """Formats `1.42 to 1.81 (20)`: least and greatest speed-up of a block, and how many blocks."""
    names = ("speedup_least", "speedup_greatest", "speedup_blocks")
    least, greatest, count = map(entry.number, names)
    if entry.role is not Role.DECODER or math.isnan(least):
        return ABSENT
    return f"{number(least, 2)} to {number(greatest, 2)} ({count:.0f})"


def _levels(run: Run, section: Section, entry: Entry) -> str:
    """Formats `3.32 of 5`: levels of a step's draft, mean, and what the tree allows."""
    drafted = number(entry.number("drafted_depth"), 2)
    return drafted if drafted == ABSENT else f"{drafted} of {entry.number('tree_depth'):.0f}"


WRITERS: Mapping[str, Callable[[Run, Section, Entry], str]] = {
    "exactness": lambda run, section, entry: run.verdict(entry) or ABSENT,
    "speedup": _speed,
    "mal": lambda run, section, entry: number(entry.number("mal"), 2),
    "tv_output": lambda run, section, entry: output_tv(entry),
    "speedup_least": _over_blocks,
    "drafted_depth": _levels,
}
