"""The leaderboard as terminal text, Markdown, CSV and one HTML page, from one set of tables."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from pathlib import Path

from bench.report import table
from bench.share.leaderboard import Line, Section

TITLE = "Leaderboard"
TEMPLATES = Path(__file__).parent / "templates"


def terminal(sections: Sequence[Section]) -> str:
    blocks = []
    for section in sections:
        blocks.append("\n".join([section.title, *section.notes, table.terminal(section.table)]))
    return "\n\n".join(blocks)


def markdown(sections: Sequence[Section]) -> str:
    parts = [f"# {TITLE}"]
    for section in sections:
        parts += [f"## {table.escaped(section.title)}", *map(table.escaped, section.notes)]
        parts.append(table.markdown(section.table))
    return "\n\n".join(parts) + "\n"


def csv(lines: Sequence[Line]) -> str:
    """Every decoder of every record in full precision, with its protocol in a column each."""
    keys = list(dict.fromkeys(key for line in lines for key, _ in line.protocol))
    rows = []
    for line in lines:
        lines_of = dict(line.protocol)
        plain = dataclasses.asdict(line)
        own = {k: plain[k] for k in ("record", "machine", "commit", "verdict", "unfair")}
        figures = {k: line.row[k] for k in COLUMNS}
        rows.append(own | figures | {f"protocol_{key}": lines_of.get(key, "") for key in keys})
    return table.csv_text(rows)


COLUMNS = (
    "decoder", "model", "backend", "device", "dtype", "temperature", "cfg", "latency_mean_s",
    "speedup", "speedup_lo", "speedup_hi", "mal", "n_quality", "fid", "fid_lo", "fid_hi", "clip",
    "clip_lo", "clip_hi", "exactness", "status",
)  # fmt: skip


def html(sections: Sequence[Section], records: int) -> str:
    """One page that needs no other file."""
    import jinja2

    environment = jinja2.Environment(
        loader=jinja2.FileSystemLoader(TEMPLATES),
        autoescape=True,
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    template = environment.get_template("leaderboard.html.j2")
    return template.render(title=TITLE, sections=sections, records=records)
