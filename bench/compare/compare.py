"""`python -m bench compare [RUN ...] [tolerance=0.1] [out=DIR]`: what papers claim, judged on runs,
and the published figures beside those of one run; as text and, in DIR, as Markdown and CSV.

A join: published figures and ours meet on method and metric. What keeps a pair apart is a column
each (`CHECKS`); of several decoders those that agree are taken, check by check. What the source
does not state is assumed, and the verdict says so. LEGEND says what verdicts mean. Precision,
recall and HPS have no interval. They are of as many images as published, which moves them by less
than the tolerance, so the value alone decides.
"""

from __future__ import annotations

import math
import re
import shlex
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import pandas as pd
import yaml

from bench.analyse.analyse import load
from bench.analyse.paired import images_once, latency_rows, mal_interval, paired_speedup
from bench.analyse.run import Role, Run, as_text
from bench.compare import claim_tables
from bench.compare.claims import load_claims
from bench.compare.judging import NOT_MEASURED, judge
from bench.compare.published import Names, as_number, load_names, load_published
from bench.config.arguments import folders, groups, settings
from bench.console import say
from bench.data.errors import ConfigError, FolderError
from bench.data.files import prepare_folder, write_text
from bench.report.table import Column, interval, number, table_of, terminal
from bench.store.facts import flat
from decoders.kinds import Within
from metrics.stats import UNKNOWN, Interval, student_mean

CHECKS = ("no_method", "other_model", "other_temperature", "other_settings", "other_cfg",
          "other_top_k", "other_prompts", "other_baseline", "on_cpu", "other_gpu", "other_weights",
          "other_images", "no_figure", "no_setting")  # fmt: skip
UNSET = "without its setting, which the source does not state"
VERDICTS = ("reproduced", "not reproduced", "not told", "not comparable")
REPRODUCED, NOT_REPRODUCED, NOT_TOLD, NOT_COMPARABLE = VERDICTS
LEGEND = """reproduced: our whole 95 % interval is within the tolerance around the published figure
not reproduced: no part of it is. not told: a part of it is, or there is no interval
*: the source leaves something unstated, and the verdict assumes it (compare.csv)
Papers measure over an eager AR without warm-up; AR is fast here: expect smaller speed-ups."""


@dataclass(frozen=True)
class CompareSettings:
    study: str | None = None
    run_dir: Path | None = None
    tolerance: Annotated[float, Within(0, 1, below=True)] = 0.1
    out: Path | None = None


def cmd_compare(arguments: Sequence[str]) -> int:
    """Papers and runs: do claims hold, are figures reproduced? compare [RUN RUN ...].
    Claims are judged on one run or several, whatever their model. The figures of one run are
    compared with published ones: reproduced, or not, or not told, or why not comparable.

    settings:
      study=NAME      the run in results/runs/NAME (default: main)
      run_dir=DIR     or the run in this folder
      tolerance=X     how far apart two figures may be, as a fraction (default: 0.1)
      out=DIR         where claims.md, claims.csv and, of one run, compare.csv go, with the grounds
                      of every verdict; without it nothing is written

    example:
      python -m bench compare results/runs/main results/runs/exact out=results/compared
      python -m bench compare study=lantern_table tolerance=0.05
    """
    places, rest = folders(arguments)
    options = settings(CompareSettings, rest)
    if len([*filter(None, (options.study, options.run_dir, places))]) > 1:
        raise ConfigError("folders, study and run_dir each name runs; keep one of them")
    places = places or [options.run_dir or Path("results/runs") / (options.study or "main")]
    runs = [load(place) for place in places]
    if len(runs) == 1:
        require_current(runs[0])
    if options.out:
        prepare_folder(options.out)
    say_claims(runs, options.out, shlex.join(arguments))
    if len(runs) == 1:
        say_figures(runs[0], options)
    elif not options.out:
        say("published figures: name one run; out=DIR writes the grounds of all verdicts")
    return 0


def say_claims(runs: Sequence[Run], out: Path | None, arguments: str) -> None:
    """Says which claims of papers hold in these runs."""
    findings = judge(load_claims(), runs)
    judged = [one for one in findings if one.pairs]
    say(f"claims: {claim_tables.count(findings)}\n")
    if judged:
        say(terminal(claim_tables.table(judged, len(runs))) + "\n")
    missing = Counter(one.claim.needs for one in findings if one.verdict == NOT_MEASURED)
    if missing:
        studies = ", ".join(f"{name} ({count})" for name, count in missing.most_common())
        say(f"not measured here; the study that measures it: {studies}\n")
    if out:
        text = claim_tables.page(findings, runs, f"python -m bench compare {arguments}")
        write_text(out / "claims.csv", claim_tables.rows(findings).to_csv(index=False))
        say(f"claims: {write_text(out / 'claims.md', text)}")


def say_figures(run: Run, options: CompareSettings) -> None:
    """Says which published figures a run reproduces."""
    names = load_names()
    found = compare(load_published(names["figures"]), run, names, options.tolerance)
    counts = ", ".join(f"{(found.verdict == word).sum()} {word}" for word in VERDICTS)
    say(f"{run.study}: {run.folder}\npublished figures: {counts}\n")
    apart = found.verdict == NOT_COMPARABLE
    if not apart.all():
        say(f"{terminal(table_of(COLUMNS, found[~apart].itertuples()))}\n{LEGEND}")
    models = sorted({*run.rows.model})
    named = [n for model in models for n in names["models"].get(model, {"names": ()})["names"]]
    if not found.model.isin(named).any():
        say(f"not comparable: no paper measured {', '.join(models)}, the model of this run")
    else:
        by_reason = found[apart].groupby(found.why.str.partition(";")[0])
        for why, group in sorted(by_reason, key=lambda item: -len(item[1])):
            say(f"not comparable, {len(group)} of {', '.join(group.paper.unique())}: {why}")
    if options.out:
        text = found.drop(columns=["line", "entry", "parts"]).to_csv(index=False)
        say(f"grounds and sources: {write_text(options.out / 'compare.csv', text)}")
    else:
        say("out=DIR writes the grounds and sources of all verdicts")


def require_current(run: Run) -> None:
    """Raises FolderError where a run is of another version of its study than this program has."""
    name, _, version = run.study.rpartition("@")
    text = groups()["study"].get(name)
    current = version if text is None else f"{yaml.safe_load(text).get('version', 1)}"
    if version != current:
        raise FolderError(
            f"expected a run of {name}@{current}, found {run.study} in {run.folder}: the study has "
            f"changed since; run it again (python -m bench run study={name})"
        )


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
    parts = {one["name"]: flat(one["spec"]) for one in config["decoders"]}
    for section in run.sections:
        for entry in (one for one in section.decoders if not one.failed):
            here, seconds = parts[entry.name], latency_rows(entry.rows).seconds_total
            first, scores = entry.ok.iloc[0], run.scores.get(entry.name, {}) | entry.line
            scores["latency_s"] = scores["latency_mean_s"]
            common = {
                "decoder": entry.name, "entry": entry, "section": section.title, "parts": here,
                "model": first.model, "prompts": config["prompts"]["name"],
                "acceptance": first.acceptance, "images": as_number(entry.number("n_quality")),
                "device": "cpu" if first.device == "cpu" else first.gpu or first.device,
                **{n: as_number(float(first[n])) for n in ("temperature", "cfg", "top_k")},
            }  # fmt: skip
            methods = [m.name for m in names["methods"].values() if m.parts.items() <= here.items()]
            for metric in names["figures"]:
                figure = Interval(
                    *(scores.get(metric + end, math.nan) for end in ("", "_lo", "_hi"))
                )
                if metric == "mal":
                    figure = mal_interval(entry.ok) or figure
                elif metric == "forwards" and len(forwards := images_once(entry.ok).nfe) > 1:
                    figure = student_mean(forwards)
                elif metric == "latency_s" and len(seconds) > 1:
                    figure = student_mean(seconds)
                own = "prc" if metric in ("precision", "recall") else metric
                weights = as_text(scores.get(f"{own}_features")) or as_text(scores["fid_features"])
                more = {"metric": metric, "weights": weights, **vars(figure)}
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
            speedup = paired_speedup(first.ok, pair.entry.ok)
            figure = UNKNOWN if speedup is None else speedup.interval()
        if pair.device == "cpu":
            found["on_cpu"] = "on a CPU, where verifying a tree costs several AR steps"
    elif metric == "latency_s":
        # `RTX 3090` is `GeForce RTX 3090`, but not an RTX 3090 Ti.
        gpu = pair.gpu or "without its name"
        same = re.search(rf"\b{re.escape(gpu)}\b(?! ti| super)", pair.device, re.IGNORECASE)
        require("other_gpu", "GPU", gpu, pair.device, bool(same))
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


def _row_text(one: Any) -> str:
    text = f"{one.paper}, {one.evidence}: {one.method}" + f" ({one.params})" * bool(one.params)
    return text + f", temperature {one.temperature}" * bool(one.temperature) + f" ↔ {one.decoder}"


COLUMNS = (
    Column("published row", _row_text),
    Column("figure", lambda one: one.figure),
    Column("published", lambda one: number(one.published, 3)),
    Column("measured", lambda one: interval(one, 3)),
    Column("difference", lambda one: f"{one.value - one.published:+z.3f}"),
    Column("verdict", lambda one: f"{one.verdict}{'*' * bool(one.assumed)}"),
)
