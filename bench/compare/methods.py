"""What conf says of published methods, and `python -m bench methods [RUN ...]`: all in one table.

A decoder's YAML says under `published` which method it is (`bench.config.schema.PublishedConfig`):
its name in published.csv, how rows of a run are recognised as it, what it is exact to, what its
released code does. names.yaml says what the papers' models, prompts and features are called here.
claims.csv has claims of papers and programs that do not hold, with what was found here: a table of
its own behind the first, in which the papers' own figures stand beside AR's.

Of a published row and the measured ones every setting agrees, differs, or is not stated by the
source. Among the rows of the same method, those that agree on the model are taken first, then on
the temperature, and so on; where none agrees, the others stay and the difference becomes an
obstacle. A setting that is not stated is no obstacle: it is written down as assumed.
"""

from __future__ import annotations

import csv
import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import astuple, dataclass, field, replace
from pathlib import Path
from typing import Annotated, Any

from bench.compare.measured import Measured
from bench.compare.measured import load as load_run
from bench.compare.published import FOLDER, Published, PublishedError, settings_text
from bench.compare.published import load as load_published
from bench.config.catalogue import groups, option
from bench.config.schema import PublishedConfig, build
from bench.config.words import with_folders
from bench.console import say
from bench.data.files import ready_file, write_text
from bench.report.table import interval, number
from decoders.kinds import Within

FILE, CLAIMS = FOLDER / "names.yaml", FOLDER / "claims.csv"
HEADINGS = ("method", "`decoder=`", "exact to", "released code", "published", "ours")
REFUTED = ("claim", "the paper's figures (AR's)", "here", "because")
CLAIM = ["paper", "arxiv", "method", "claim", "here", "reason"]
NOTHING = "-"
# Whether a setting agrees (None: the source does not state it); the obstacle, or what is assumed.
Setting = tuple[bool | None, str]
AGREES: Setting = True, ""


@dataclass(frozen=True)
class PaperModel:
    """A model as the papers call it, at the resolution of one of ours."""

    model: str
    resolution: float


@dataclass(frozen=True)
class Names:
    """models: by our name; families: published name -> members; methods: by their names in
    published.csv."""

    models: Mapping[str, Any]  # (published name, resolution)
    families: Mapping[str, list[str]]
    prompts: Mapping[str, str]
    features: Mapping[str, list[str]]
    images: Annotated[int, Within(1)]
    methods: Mapping[str, PublishedConfig] = field(default_factory=dict)

    def same_features(self, metric: str, name: str) -> bool:
        """Whether features or weights of this name are those of the papers' protocol."""
        words = set(re.split(r"[^a-z0-9.]+", name.lower()))
        return all(word in words for word in self.features.get(metric, ()))


def load_names(path: Path = FILE) -> Names:
    """names.yaml, and the methods of conf/decoder. Raises BenchError where it is damaged."""
    import yaml

    try:
        found = yaml.safe_load(path.read_text(encoding="utf-8"))
    except (OSError, yaml.YAMLError) as error:
        raise PublishedError(f"cannot read {path} ({error}); restore it from git") from error
    names = build(Names, found, str(path))
    models = {k: build(PaperModel, v, f"{path}: {k}") for k, v in names.models.items()}
    return replace(
        names,
        models={name: astuple(one) for name, one in models.items()},
        methods={one.name: one for _, one in methods() if one.name},
    )


def entries() -> list[tuple[str, dict[str, Any]]]:
    """Every decoder of conf, and its YAML."""
    import yaml

    return [(name, yaml.safe_load(option("decoder", name))) for name in groups()["decoder"]]


def methods() -> list[tuple[str, PublishedConfig]]:
    """(decoder, its method): AR, exact ones, then the others, each by the date of the paper."""
    found = []
    for decoder, written in entries():
        if "published" in written:
            one = build(PublishedConfig, written["published"], f"{decoder}: published")
            exact = written.get("expect") == "exact"
            order = (not written.get("baseline"), not exact, one.arxiv or "later", one.method)
            found.append((order, decoder, one))
    return [(decoder, one) for _, decoder, one in sorted(found, key=lambda line: line[0])]


def cmd_methods(words: Sequence[str]) -> int:
    """Every method: exact to what, as released, published, and ours in the runs named.
    Prints a Markdown table, and one of published claims that do not hold.
    Usage: [RUN ...] [setting=value ...]
    Settings:
        out=FILE  also writes the table there
    Example: methods results/runs/exact results/runs/relaxed

    Raises BenchError.
    """
    runs, given = with_folders(words, ("out",), "methods")
    out = Path(given["out"]).expanduser() if "out" in given else None
    if out:
        ready_file(out)
    published = load_published()
    text = f"{table(published, runs)}\n\n{claims(published)}"
    say(text)
    if out:
        write_text(out, text + "\n")
    return 0


def table(rows: Sequence[Published], runs: Sequence[Path] = ()) -> str:
    """The Markdown table; without runs it has no column of ours."""
    found = {row.decoder: row for run in runs for row in load_run(run).rows}
    lines = [
        (
            f"{one.method} ([{one.arxiv}](https://arxiv.org/abs/{one.arxiv}))"
            if one.arxiv
            else one.method,
            ", ".join(f"`{name}`" for name in (decoder, *one.variants)),
            one.exact_to,
            one.released or NOTHING,
            figures(one.name, rows),
            ours((decoder, *one.variants, *one.rows), found),
        )
        for decoder, one in methods()
    ]
    return _table(HEADINGS, lines, len(HEADINGS) - (not runs))


def claims(rows: Sequence[Published], path: Path = CLAIMS) -> str:
    """The Markdown table of claims that do not hold. Raises PublishedError where the file is
    damaged."""
    try:
        with path.open(encoding="utf-8", newline="") as file:
            reader = csv.DictReader(file)
            found = [*reader]
            if reader.fieldnames != CLAIM or not all(all(one.values()) for one in found):
                raise PublishedError(f"{path}: expected the columns {CLAIM}, none of them empty")
    except (OSError, csv.Error) as error:
        raise PublishedError(f"cannot read {path} ({error}); restore it from git") from error
    lines = [
        (
            f"{one['method']}: {one['claim']} "
            f"([{one['arxiv']}](https://arxiv.org/abs/{one['arxiv']}))",
            own_figures(one["paper"], one["method"], rows),
            one["here"],
            one["reason"],
        )
        for one in found
    ]
    return _table(REFUTED, lines, len(REFUTED))


def own_figures(paper: str, method: str, rows: Sequence[Published]) -> str:
    """FID and CLIP of a method in its paper, AR's of the same table in brackets; the first model
    that has both."""
    own = [row for row in rows if row.paper == paper and "fid" in row.figures]
    for row in (row for row in own if row.method == method):
        same = (row.model, row.dataset, row.resolution)
        for ar in (ar for ar in own if ar.method == "AR"):
            if (ar.model, ar.dataset, ar.resolution) == same:
                return f"{row.model} " + ", ".join(
                    f"{name.upper()} {row.figures[name]:.{digits}f} ({ar.figures[name]:.{digits}f})"
                    for name, digits in (("fid", 2), ("clip", 4))
                    if name in row.figures and name in ar.figures
                )
    return NOTHING


def _table(headings: Sequence[str], lines: Sequence[Sequence[str]], width: int) -> str:
    return "\n".join(
        f"| {' | '.join(cell.replace('|', '/') for cell in line[:width])} |"
        for line in (headings, [":--"] * len(headings), *lines)
    )


def figures(method: str, rows: Sequence[Published]) -> str:
    """Published speed-ups over AR: by model, lowest to highest, with who measured them."""
    groups: dict[str, list[Published]] = {}
    for row in rows:
        if row.method == method != "AR" == row.baseline and "speedup" in row.figures:
            greedy = ", greedy" * (row.temperature == 0)
            groups.setdefault(f"{row.model or 'model not named'}{greedy}", []).append(row)
    return "; ".join(_range(name, group) for name, group in sorted(groups.items())) or NOTHING


def _range(name: str, rows: Sequence[Published]) -> str:
    speeds = sorted({row.figures["speedup"] for row in rows})
    papers = ", ".join(sorted({row.paper for row in rows}))
    span = " to ".join(f"{speed:.2f}x" for speed in dict.fromkeys((speeds[0], speeds[-1])))
    return f"{name} {span} ({papers})"


def ours(names: Sequence[str], found: Mapping[str, Measured]) -> str:
    """Speed-up with its interval and codes per forward of those of these decoders that were run; of
    several runs of one decoder the last that was named."""
    cells = []
    for name in (name for name in names if name in found):
        measured = found[name].figures
        speed, codes = interval(measured["speedup"], 2), number(measured["mal"].value, 2)
        cells.append(f"`{name}` {speed}x, {codes} codes")
    return "; ".join(cells) or NOTHING


@dataclass(frozen=True)
class Pair:
    """measured None: the run has no such method, and `obstacles` says so. same_model: as far as the
    source tells; unstated: settings of the method (k, delta) that the source does not state."""

    published: Published
    measured: Measured | None
    obstacles: tuple[str, ...]
    assumed: tuple[str, ...] = ()
    same_model: bool = False
    unstated: str = ""


def is_method(row: Measured, name: str, names: Names) -> bool:
    """Whether a measured row is of a published method, by its loop, drafter or proposer, rule and
    tree. A table of an older version says no loop and no drafter, and knew only AR and drafters on
    trees."""
    if name not in names.methods:
        return False
    parts = {"loop": "speculative"} | names.methods[name].parts
    if row.loop is None:
        row_loop = "autoregressive" if row.rule.name == "none" else "speculative"
    else:
        row_loop = row.loop.name
    here = {"loop": row_loop, "acceptance": row.rule.name, "tree": row.tree.name}
    if row.drafter is not None:
        here["drafter"] = row.drafter.name
    elif "tree" in parts:
        here["drafter"] = parts.get("drafter", "")
    return all(here.get(part) == wanted for part, wanted in parts.items())


def pairs(published: Published, rows: Sequence[Measured], names: Names) -> list[Pair]:
    """The measured rows that come nearest to a published one; one Pair without a row if none."""
    left = [row for row in rows if is_method(row, published.method, names)]
    if not left:
        known = published.method in names.methods
        nowhere = "has no rows that conf/decoder can recognise"
        reason = "was not measured in this run" if known else nowhere
        return [Pair(published, None, (f"{published.method} {reason}",))]
    checked = {id(row): settings(published, row, names) for row in left}
    for name in checked[id(left[0])]:
        left = [row for row in left if checked[id(row)][name][0] is not False] or left
    return [_pair(published, row, checked[id(row)]) for row in left]


def _pair(published: Published, row: Measured, checked: Mapping[str, Setting]) -> Pair:
    obstacles, assumed = (
        tuple(text for agrees, text in checked.values() if agrees is wanted)
        for wanted in (False, None)
    )
    agrees, text = checked["params"]
    unstated = text if agrees is None else ""
    return Pair(published, row, obstacles, assumed, checked["model"][0] is not False, unstated)


def settings(published: Published, row: Measured, names: Names) -> dict[str, Setting]:
    """Every setting that decides whether two figures are of the same thing, most decisive first."""
    return {
        "model": _model(published, row, names),
        "temperature": _number("temperature", published.temperature, row.temperature),
        "tree": _tree(names.methods[published.method].tree, row),
        "cfg": _number("cfg", published.cfg, row.cfg),
        "top-k": _number("top-k", published.top_k, row.top_k),
        "params": _params(published.params, names.methods[published.method].params, row),
        "prompts": _prompts(published.dataset, names.prompts.get(row.prompts, ""), row),
    }


def _model(published: Published, row: Measured, names: Names) -> Setting:
    if not published.model:
        return False, "the source names no model"
    name, resolution = names.models.get(row.model, (row.model, math.nan))
    if published.resolution in (None, resolution):
        if published.model == name:
            return AGREES
        if name in names.families.get(published.model, ()):
            sure = published.resolution is not None
            return True if sure else None, f"{published.model} is {name}"
    return _other("model", published.model, row.model)


def _number(name: str, published: float | None, ours: float | None) -> Setting:
    if published is None:
        return None, f"{name} {'as here' if ours is None else f'{ours:g}'}"
    if ours is None:
        return None, f"our {name} is {published:g}"
    if math.isclose(published, ours):
        return AGREES
    return _other(name, f"{published:g}", f"{ours:g}")


def _tree(wanted: Mapping[str, float], row: Measured) -> Setting:
    """The tree of the authors' code; a smaller one drafts less and is verified faster."""
    here = {key: value for key in wanted if (value := row.tree.number(key)) is not None}
    if all(value == wanted[key] for key, value in here.items()):
        return AGREES
    return _other("tree", settings_text(wanted), settings_text(here))


def _params(wanted: Mapping[str, float], places: Mapping[str, str], row: Measured) -> Setting:
    """places: where ours are, as `acceptance.k` or `proposer.window`."""
    here: dict[str, float] = {}
    for key in {**places, **wanted}:
        part, _, name = places.get(key, f"acceptance.{key}").partition(".")
        described = {"acceptance": row.rule, "proposer": row.drafter}[part]
        value = None if described is None else described.number(name)
        here |= {} if value is None else {key: value}
    differing = [key for key in wanted if key in here and not math.isclose(here[key], wanted[key])]
    if differing:
        stated, found = ({key: side[key] for key in differing} for side in (wanted, here))
        return _other("settings", settings_text(stated), settings_text(found))
    unstated = {
        key: here[key]
        for key, place in places.items()
        if place.startswith("acceptance.") and key in here and key not in wanted
    }
    return None if unstated else True, settings_text(unstated)


def _prompts(published: str, ours: str, row: Measured) -> Setting:
    if not published or not ours:
        return None, f"prompts as published ({published or 'not stated'})"
    return AGREES if published.startswith(ours) else _other("prompts", published, row.prompts)


def _other(name: str, published: str, here: str) -> Setting:
    return False, f"other {name} (published {published}, here {here})"
