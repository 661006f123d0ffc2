"""`python -m bench compare [study=NAME | run_dir=DIR] [tolerance=0.1] [out=DIR]`: a run and the
published numbers, as text and CSV.

A join: published figures and ours meet on method and metric. What keeps a pair apart is a column
each (`CHECKS`); of several decoders those that agree are taken, check by check. What the source
does not state is assumed, and the verdict says so. Where decoders with other values of it come to
other verdicts, the figure is not comparable.

*Reproduced*: our whole 95 % interval is within the tolerance around the published figure. *Not
reproduced*: no part of it is. *Not told*: a part of it is, or there is no interval. Precision,
recall and HPS never have one. They are of as many images as published, which moves them by less
than the tolerance, so the value alone decides.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import pandas as pd

from bench.analyse.analyse import load
from bench.analyse.paired import latency_rows, mal_interval, paired_speedup
from bench.analyse.run_data import Role, RunData, as_text
from bench.compare.published import LABELS, Names, load_names
from bench.compare.published import load as load_published
from bench.config.words import settings
from bench.console import say
from bench.data.errors import ConfigError, FolderError
from bench.data.files import prepare_folder, write_text
from bench.report import table
from bench.report.table import Column
from bench.store.study import flat
from decoders.kinds import Within
from metrics.stats import UNKNOWN, Interval, student_mean

CHECKS = (
    "no_method", "other_model", "other_temperature", "other_settings", "other_cfg", "other_top_k",
    "other_prompts", "other_baseline", "on_cpu", "other_gpu", "other_weights", "other_images",
    "no_figure", "no_setting",
)  # fmt: skip
ALONE = ("precision", "recall", "hps")  # the value decides
# Methods differ by tenths of a point here: a tenth of the figure would call everything reproduced.
ABSOLUTE = {"clip": 0.5, "hps": 0.5, "precision": 0.02, "recall": 0.02}
VERDICTS = ("reproduced", "not reproduced", "not told", "not comparable")
REPRODUCED, NOT_REPRODUCED, NOT_TOLD, NOT_COMPARABLE = VERDICTS
LEGEND = """reproduced: our whole 95 % interval is within the tolerance around the published figure
not reproduced: no part of it is. not told: a part of it is, or there is no interval
*: the source leaves something unstated, and the verdict assumes it (compare.csv)
Papers measure speed-ups over an eager AR without warm-up, and LANTERN with its released code. Here
AR is as fast as the machine allows, so that a smaller speed-up is expected."""


@dataclass(frozen=True)
class CompareSettings:
    """The settings of `cmd_compare`."""

    study: str | None = None
    run_dir: Path | None = None
    tolerance: Annotated[float, Within(0, 1, below=True)] = 0.1
    out: Path | None = None


def cmd_compare(words: Sequence[str]) -> int:
    """A run and the papers' numbers: reproduced, or not, or not told, or why not comparable.
    Writes compare.csv, with the grounds of every verdict.

    settings:
      study=NAME      the run in results/runs/NAME (default: main)
      run_dir=DIR     or the run in this folder
      tolerance=X     how far apart two figures may be, as a fraction (default: 0.1)
      out=DIR         where the files go (default: compare/ in the run's folder)

    example:
      python -m bench compare run_dir=results/runs/main tolerance=0.05
    """
    # Without Hydra: the study may need settings (a caption file) that are not at hand here.
    options = settings(CompareSettings, words)
    if options.study and options.run_dir:
        raise ConfigError("study and run_dir each name a run; keep one of them")
    folder = options.run_dir or Path("results/runs") / (options.study or "main")
    run, out = load(folder), options.out or folder / "compare"
    found = compare(load_published(), run, load_names(), options.tolerance)
    prepare_folder(out)
    say(terminal(run, found))
    columns = found.drop(columns=["line", "entry", "parts", "section"])
    path = write_text(out / "compare.csv", columns.to_csv(index=False))
    say(f"grounds and sources: {path}")
    return 0


def compare(published: pd.DataFrame, run: RunData, names: Names, ratio: float) -> pd.DataFrame:
    """Joins published figures (`published.load`) with a run's. Returns one row per published
    figure: the nearest decoder, an obstacle or "" by each of `CHECKS`, verdict and grounds. ratio:
    the tolerance, see `judge`."""
    ours = measured(run, names)
    joined = published.merge(ours, "left", ["method", "metric"], suffixes=("", "_here"))
    pairs = []
    for row in joined.itertuples(index=False):
        pair = row._asdict() | dict.fromkeys(CHECKS, "") | obstacles_of(row, ours, names)
        pairs.append(pair | judge(pair, ratio))
    lines = []
    for _, group in pd.DataFrame(pairs).groupby(["line", "metric"], sort=False):
        for name in CHECKS:
            agree = group[name] == ""
            group = group[agree] if agree.any() else group
        away = (group.value - group.published).abs().fillna(math.inf)
        line = group.loc[away.idxmin()].to_dict()
        if group.verdict.nunique() > 1:
            each = ", ".join(f"{one.decoder} {one.verdict}" for one in group.itertuples())
            line["no_setting"] = f"without its setting, which the source leaves open: {each}"
            line |= {"verdict": NOT_COMPARABLE, "why": line["no_setting"]}
        lines.append(line | {"decoders": ", ".join(group.decoder.dropna())})
    return pd.DataFrame(lines)


def measured(run: RunData, names: Names) -> pd.DataFrame:
    """Returns a run's figures, one row per decoder, method that its parts (study.json) make it, and
    metric; settings as texts. Raises FolderError where every decoder failed."""
    config, lines = run.identity["config"], list[dict[str, Any]]()
    parts = {one["name"]: flat(one["spec"]) for one in config["decoders"]}
    for section, decoders in enumerate(one.decoders for one in run.sections):
        for entry in (one for one in decoders if not one.failed):
            here, seconds = parts[entry.name], latency_rows(entry.records).seconds_total
            ok, scores = entry.ok.iloc[0], run.scores.get(entry.name, {}) | entry.row
            common = {
                "decoder": entry.name, "entry": entry, "section": section, "parts": here,
                "model": ok.model, "temperature": f"{ok.temperature:g}", "cfg": f"{ok.cfg:g}",
                "top_k": f"{ok.top_k:g}", "images": f"{entry.number('n_quality'):g}",
                "prompts": config["prompts"]["name"], "acceptance": ok.acceptance,
                "device": "cpu" if ok.device == "cpu" else ok.gpu or ok.device,
            }  # fmt: skip
            methods = [m.name for m in names.methods.values() if m.parts.items() <= here.items()]
            for metric in LABELS:
                column = "latency_mean_s" if metric == "latency_s" else metric
                ends = (float(scores.get(column + end, math.nan)) for end in ("", "_lo", "_hi"))
                figure = Interval(*ends)
                if metric == "mal":
                    figure = mal_interval(entry.ok) or figure
                elif metric == "latency_s" and len(seconds) > 1:
                    figure = student_mean(seconds)
                own = "prc" if metric in ("precision", "recall") else metric
                weights = as_text(scores.get(f"{own}_features")) or as_text(scores["fid_features"])
                more = {"metric": metric, "weights": weights, **vars(figure)}
                lines += [common | more | {"method": method} for method in methods or [""]]
    if not lines:
        raise FolderError(
            f"{run.folder} has no decoder with figures; see the column status of summary.csv"
        )
    return pd.DataFrame(lines)


def obstacles_of(pair: Any, ours: pd.DataFrame, names: Names) -> dict[str, Any]:
    """Says what keeps a published figure and one of ours apart: a text by those of `CHECKS` that
    do. assumed: what the source does not state, as it is here. value, lo, hi: our figure, of a
    speed-up over the published baseline."""
    found, assumed = dict[str, Any](), list[str]()
    if pd.isna(pair.decoder):
        known = pair.method in names.methods
        found["no_method"] = f"the method {'was not measured' if known else 'is not implemented'}"
        return found | {"assumed": ""}

    def require(check: str, name: str, published: str, here: str, same: bool | None = None) -> None:
        if not published:
            assumed.extend([f"{name} {here}"] * bool(here))
        elif not (published == here if same is None else same):
            text = f"other {name} (published {published}, here {here or 'not set'})"
            found[check] = "; ".join(filter(None, [found.get(check), text]))

    here = pair.model_here
    model = names.models.get(here, {"names": [here], "resolution": pair.resolution})
    require("other_model", "model", pair.model, here, pair.model in model["names"])
    require("other_model", "resolution", pair.resolution, f"{model['resolution']}")
    if pair.model in names.not_available:
        found["other_model"] = names.not_available[pair.model]
    for name in ("temperature", "cfg", "top_k"):
        require(f"other_{name}", name, getattr(pair, name), getattr(pair, f"{name}_here"))
    method, parts = names.methods[pair.method], pair.parts
    for key, value in method.settings.items():
        require("other_settings", key, number_text(value), number_text(parts.get(key)))
    stated = {k: number_text(float(v)) for k, v in re.findall(r"(\w+)=(\S+)", pair.params)}
    for name in {**method.params, **stated}:
        key, _, more = method.params.get(name, "").partition(" + ")
        value = parts[key] + int(more) if more and key in parts else parts.get(key)
        require("other_settings", name, stated.get(name, ""), number_text(value))
    prompts = names.prompts.get(pair.prompts, "")
    dataset = pair.dataset if prompts else ""  # another set of ours cannot be told
    require("other_prompts", "prompts", dataset, pair.prompts, dataset.startswith(prompts))

    figure, metric = Interval(pair.value, pair.lo, pair.hi), pair.metric
    if metric == "speedup":
        bases = ours[(ours.section == pair.section) & (ours.method == pair.baseline)]
        if bases.empty:
            found["other_baseline"] = f"other baseline: no {pair.baseline} of this sampling here"
        elif all(base.role is not Role.BASELINE for base in bases.entry):
            tree = {key: value for key, value in parts.items() if key.startswith("tree")}
            alike = bases[[tree.items() <= base.items() for base in bases.parts]]
            base = (bases if alike.empty else alike).entry.iloc[0]
            speedup = paired_speedup(base.ok, pair.entry.ok)
            figure = UNKNOWN if speedup is None else speedup.interval()
        if pair.device == "cpu":
            found["on_cpu"] = "on a CPU, where verifying a tree costs several AR steps"
    elif metric == "latency_s":
        gpu = pair.gpu or "without its name"
        require("other_gpu", "GPU", gpu, pair.device, same_gpu(pair.gpu, pair.device))
    if math.isnan(figure.value):
        found["no_figure"] = f"{LABELS[metric]} was not measured"
    elif wanted := names.features.get(metric):
        same = {*wanted} <= {*re.split(r"[^a-z0-9.]+", pair.weights.lower())}
        require("other_weights", "metric weights", " ".join(wanted), pair.weights, same)
    if metric in ("fid", *ALONE):
        assumed += [f"{names.images} images"] * (not pair.images)
        images = pair.images or f"{names.images}"
        require("other_images", "number of images", images, pair.images_here)
    return found | vars(figure) | {"assumed": ", ".join(assumed)}


def number_text(value: Any) -> str:
    return "" if value is None else f"{value:g}" if isinstance(value, int | float) else str(value)


def same_gpu(published: str, ours: str) -> bool:
    """Whether two names mean one GPU: `RTX 3090` is `GeForce RTX 3090`, but not an RTX 3090 Ti."""
    wanted, here = ({*re.split(r"[^a-z0-9]+", text.lower())} for text in (published, ours))
    return wanted <= here and not (here - wanted) & {"ti", "super"}


def judge(pair: Mapping[str, Any], ratio: float) -> dict[str, str]:
    """Returns the verdict on a pair, and its grounds. The tolerance is a fraction (ratio) of the
    published figure, for FID half of it, or absolute."""
    if obstacles := [pair[name] for name in CHECKS if pair[name]]:
        return {"verdict": NOT_COMPARABLE, "why": "; ".join(obstacles)}
    metric, published, value, lo, hi = (
        pair[k] for k in ("metric", "published", "value", "lo", "hi")
    )
    tolerance = ABSOLUTE.get(metric, published * (ratio / 2 if metric == "fid" else ratio))
    low, high, what = published - tolerance, published + tolerance, f"[{lo:.4g}, {hi:.4g}]"
    if metric in ALONE and math.isnan(lo + hi):
        lo, hi, what = value, value, f"{value:.4g} (without interval)"
    if math.isnan(lo + hi):
        verdict, why = NOT_TOLD, "no interval: too few blocks or images"
    elif low <= lo and hi <= high:
        verdict, why = REPRODUCED, f"{what} is within the tolerance"
    elif hi < low or high < lo:
        verdict, why = NOT_REPRODUCED, f"{what} is beyond the tolerance"
    else:
        verdict, why = NOT_TOLD, f"{what} is partly within the tolerance: more images would tell"
    assumed = f"assumes {pair['assumed']}" if pair["assumed"] else ""
    why = f"{100 * (value / published - 1):+.1f} %: {why} of {tolerance:.3g}"
    return {"verdict": verdict, "why": ". ".join(filter(None, [why, assumed, pair["sources"]]))}


def terminal(run: RunData, found: pd.DataFrame) -> str:
    """Formats the comparable figures as a table, and the obstacles of others by frequency."""
    counts = ", ".join(f"{(found.verdict == word).sum()} {word}" for word in VERDICTS)
    lines = [f"{run.study}: {run.folder}", f"published figures: {counts}", ""]
    apart = found.verdict == NOT_COMPARABLE
    if not apart.all():
        compared = table.table_of(COLUMNS, found[~apart].itertuples())
        lines += [table.terminal(compared), LEGEND]
    first = found[apart].why.str.split("[;:]", n=1, regex=True).str[0]
    for why, group in sorted(found[apart].groupby(first), key=lambda item: -len(item[1])):
        papers, figures = ", ".join(group.paper.unique()), f"figure{'s' * (len(group) > 1)}"
        lines.append(f"not comparable, {len(group)} {figures} of {papers}: {why}")
    return "\n".join(lines)


def _row_text(one: Any) -> str:
    text = f"{one.paper}, {one.evidence}: {one.method}" + f" ({one.params})" * bool(one.params)
    text += f", temperature {one.temperature}" * bool(one.temperature)
    return f"{text} ↔ {one.decoder}"


COLUMNS = (
    Column("published row", _row_text, words=True),
    Column(
        "figure",
        lambda one: LABELS[one.metric] + f" over {one.baseline}" * (one.metric == "speedup"),
        words=True,
    ),
    Column("published", lambda one: table.number(one.published, 3)),
    Column("measured", lambda one: table.interval(one, 3)),
    Column("difference", lambda one: f"{one.value - one.published:+z.3f}"),
    # An asterisk marks a verdict that rests on what the source does not state.
    Column("verdict", lambda one: f"{one.verdict}{'*' * bool(one.assumed)}", words=True),
)
