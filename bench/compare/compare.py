"""A run and the published numbers, joined on method and metric.

What keeps a pair apart is a column each (`CHECKS`); of several decoders those that agree are taken,
check by check. What the source does not state is assumed, and the verdict says so.
`bench.commands.compare` says what verdicts mean. Precision, recall and HPS have no interval. They
are of as many images as published, which moves them by less than the tolerance, so the value alone
decides.
"""

from __future__ import annotations

import math
import re
from typing import Any

import pandas as pd

from bench.analyse.contrast import contrast
from bench.analyse.run import Role, Run
from bench.compare.published import Names, as_number
from bench.errors import FolderError
from bench.report.table import interval
from metrics.stats import NO_INTERVAL, Interval, student_mean

CHECKS = (
    "no_method", "other_model", "other_temperature", "other_settings", "other_cfg", "other_top_k",
    "other_prompts", "other_baseline", "on_cpu", "other_gpu", "other_weights", "other_images",
    "no_figure", "no_setting",
)  # fmt: skip
UNSET = "without its setting, which the source does not state"
VERDICTS = ("reproduced", "not reproduced", "not told", "not comparable")
REPRODUCED, NOT_REPRODUCED, NOT_TOLD, NOT_COMPARABLE = VERDICTS


def compare(published: pd.DataFrame, run: Run, names: Names, ratio: float) -> pd.DataFrame:
    """Joins published figures (`load_published`) with a run's. Returns one row per published
    figure: the nearest decoder, an obstacle or "" by each of `CHECKS`, verdict and grounds. ratio:
    the tolerance of figures that have no absolute one, as a fraction of the published figure."""
    ours, rows = measured(run, names), []
    joined: Any = published.merge(ours, "left", ["method", "metric"], suffixes=("", "_here"))
    for row in joined.fillna({"decoder": ""}).itertuples(index=False):
        pair = row._asdict() | dict.fromkeys(CHECKS, "") | obstacles_of(row, ours, names)
        value, lo, hi, kind = pair["value"], pair["lo"], pair["hi"], names["figures"][row.metric]
        tolerance = kind.get("tolerance", row.published * ratio * kind.get("share", 1))
        low, high = row.published - tolerance, row.published + tolerance
        text = interval(Interval(value, lo, hi), 3) + " (no interval)" * math.isnan(lo + hi)
        why = [f"{text} against {row.published:.4g} ± {tolerance:.3g}"]
        lo, hi = (value, value) if kind.get("alone") else (lo, hi)
        within, beyond = low <= lo and hi <= high, hi < low or high < lo
        verdict = REPRODUCED if within else NOT_REPRODUCED if beyond else NOT_TOLD
        why += [f"assumes {pair['assumed']}"] * bool(pair["assumed"]) + [row.sources]
        if obstacles := [pair[name] for name in CHECKS if pair[name]]:
            verdict, why = NOT_COMPARABLE, obstacles
        rows.append(pair | {"verdict": verdict, "why": "; ".join(filter(None, why))})
    pairs = pd.DataFrame(rows)
    for name in CHECKS:
        agree = pairs[name] == ""
        pairs = pairs[agree | ~agree.groupby([pairs.line, pairs.metric]).transform("any")]
    figures = pairs.assign(decoders=pairs.decoder + " " + pairs.verdict).groupby(["line", "metric"])
    pairs = pairs.assign(decoders=figures.decoders.transform(", ".join))
    differ = figures.verdict.transform("nunique") > 1
    pairs.loc[differ, ["verdict", "no_setting", "why"]] = NOT_COMPARABLE, UNSET, UNSET
    nearest = (pairs.value - pairs.published).abs().sort_values(kind="stable").index
    return pairs.loc[nearest].drop_duplicates(["line", "metric"]).sort_index()


def measured(run: Run, names: Names) -> pd.DataFrame:
    """Returns a run's figures, one row per decoder, method that its parts (study.json) make it, and
    metric; settings as texts. Raises FolderError where every decoder failed."""
    config, lines = run.identity["config"], list[dict[str, Any]]()
    specs = run.specs
    for section in run.sections:
        for entry in (one for one in section.decoders if not one.failed):
            here, seconds = specs[entry.name], entry.line.timed.seconds_total
            first, scores = entry.rows[entry.rows.status == "ok"].iloc[0], entry.line.scores
            common = {
                "decoder": entry.name,
                "entry": entry,
                "section": section.title,
                "parts": here,
                "model": first.model,
                "prompts": config["prompts"]["name"],
                "acceptance": first.acceptance,
                "images": as_number(entry.number("n_quality")),
                "device": "cpu" if first.device == "cpu" else first.gpu or first.device,
                **{n: as_number(float(first[n])) for n in ("temperature", "cfg", "top_k")},
            }
            methods = [m.name for m in names["methods"].values() if m.parts.items() <= here.items()]
            for metric in names["figures"]:
                name = {"latency_s": "latency_mean_s"}.get(metric, metric)
                figure = entry.interval(name) if name in entry.figures else NO_INTERVAL
                if metric == "latency_s" and len(seconds) > 1:
                    figure = student_mean(seconds)
                elif metric == "forwards" and len(entry.line.images) > 1:
                    figure = student_mean(entry.line.images.nfe)
                more = {"metric": metric, "weights": scores[metric].features, **vars(figure)}
                lines += [common | more | {"method": method} for method in methods or [""]]
    if not lines:
        raise FolderError(f"{run.folder} has no decoder with figures; see status in summary.csv")
    return pd.DataFrame(lines)


def obstacles_of(pair: Any, ours: pd.DataFrame, names: Names) -> dict[str, Any]:
    """Says what keeps a published figure and one of ours apart: a text by those of `CHECKS` that
    do. assumed: what the source does not state, as it is here. value, lo, hi: our figure, of a
    speed-up over the published baseline."""
    if not pair.decoder:
        state = "was not measured" if pair.method in names["methods"] else "is not implemented"
        return {"no_method": f"the method {state}", "assumed": ""}
    found, assumed = dict[str, Any](), list[str]()

    def require(check: str, name: str, published: str, here: str, same: bool | None = None) -> None:
        if not published:
            assumed.extend([f"{name} {here}"] * bool(here))
        elif not (published == here if same is None else same):
            text = f"other {name} (published {published}, here {here or 'not set'})"
            found[check] = "; ".join(filter(None, [found.get(check), text]))

    here = pair.model_here
    model = names["models"].get(here, {"names": [here], "resolution": pair.resolution})
    require("other_model", "model", pair.model, here, pair.model in model["names"])
    require("other_model", "resolution", pair.resolution, f"{model['resolution']}")
    if pair.model in names["not_available"]:
        found["other_model"] = names["not_available"][pair.model]
    for name in ("temperature", "cfg", "top_k"):
        require(f"other_{name}", name, getattr(pair, name), getattr(pair, f"{name}_here"))
    method, parts = names["methods"][pair.method], pair.parts
    for key, value in method.settings.items():
        require("other_settings", key, as_number(value), as_number(parts.get(key)))
    stated = {k: as_number(float(v)) for k, v in re.findall(r"(\w+)=(\S+)", pair.params)}
    for name in {**method.params, **stated}:
        key, _, more = method.params.get(name, "").partition(" + ")
        value = parts[key] + int(more) if more and key in parts else parts.get(key)
        require("other_settings", name, stated.get(name, ""), as_number(value))
    prompts = names["prompts"].get(pair.prompts, "")
    dataset = pair.dataset if prompts else ""  # another set of ours cannot be told
    require("other_prompts", "prompts", dataset, pair.prompts, dataset.startswith(prompts))

    figure, metric = Interval(pair.value, pair.lo, pair.hi), pair.metric
    if metric == "speedup":
        bases = ours[(ours.section == pair.section) & (ours.method == pair.baseline)]
        tree = {key: value for key, value in parts.items() if key.startswith("tree")}
        alike = [b.entry for b in bases.itertuples() if tree.items() <= b.parts.items()]
        first = next(iter([*alike, *bases.entry]), None)
        if first is None:
            found["other_baseline"] = f"other baseline: no {pair.baseline} of this sampling here"
        elif first.role is not Role.BASELINE:
            speedup = contrast("speedup", first, pair.entry)
            figure = NO_INTERVAL if speedup is None else speedup.interval()
    if metric == "speedup" and pair.device == "cpu":
        found["on_cpu"] = "on a CPU, where verifying a tree costs several AR steps"
    elif metric in ("speedup", "latency_s"):
        # `RTX 3090` is `GeForce RTX 3090`, but not an RTX 3090 Ti.
        gpu = pair.gpu or "without its name"
        same = re.search(rf"\b{re.escape(gpu)}\b(?! ti| super)", pair.device, re.IGNORECASE)
        # Of a ratio an unnamed one may be assumed, of seconds it may not.
        published = pair.gpu if metric == "speedup" else gpu
        require("other_gpu", "GPU", published, pair.device, bool(same))
    kind = names["figures"][metric]
    if math.isnan(figure.value):
        found["no_figure"] = f"{kind['label']} was not measured"
    elif wanted := kind.get("weights"):
        known = {*wanted} <= {*re.split(r"[^a-z0-9.]+", pair.weights.lower())}
        require("other_weights", "weights", " ".join(wanted), pair.weights, known)
    if images := kind.get("images"):
        assumed += [f"{images} images"] * (not pair.images)
        require("other_images", "number of images", pair.images or f"{images}", pair.images_here)
    return found | vars(figure) | {"assumed": ", ".join(assumed)}
