"""`python -m bench predict` and `python -m bench tune`."""

from __future__ import annotations

import gc
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from bench.console import complain, say
from bench.os_errors import ready_folder
from bench.records.schema import write_text
from bench.report.table import (
    ABSENT,
    Column,
    figures,
    filled,
    interval,
    number,
    of_cells,
    percent,
    terminal,
)

if TYPE_CHECKING:
    from bench.config.schema import DecoderEntry
    from bench.predict.measured import Measured
    from bench.predict.predict import Row
    from bench.predict.settings import TuneStudy
    from bench.predict.tune import Candidate, Search

SHOWN = 16  # frontier points printed
CLASS = {"exact": "exact", "bounded": "exact or bounded"}  # tune.exactness in words


def cmd_predict(words: Sequence[str]) -> int:
    """Predicted beside measured speed-up of a run's decoders, and where a step's time was expected
    and where it went; predicted.csv and a plot into RUN_DIR/predict. With hardware=NAME: what the
    run's acceptance would give there (`bench.predict.hardware`)."""
    from bench.predict.hardware.settings import is_asked

    if is_asked(words):
        from bench.predict.hardware.command import cmd_project

        return cmd_project(words)
    from bench.config.compose import compose_study
    from bench.config.own_settings import own_settings
    from bench.predict.predict import PredictConfig, frame, rows_of
    from bench.predict.recorded import read_run, same_machine
    from bench.report.plots.predict import predicted_plot
    from bench.run.schedule import cells
    from bench.run.session import opened

    told, rest = own_settings(PredictConfig, "predict", words)
    config = compose_study(rest)
    rows = read_run(config)
    ready_folder(Path(config.run_dir) / "predict")
    own = opened(config, 1)
    model, text = own.model, own.prompts[0].text
    same_machine(config, model)
    found = rows_of(config, told, model, cells(config, model.sampling), rows, text)
    if not found:
        complain("no decoder of this run drafts and has a baseline: nothing to predict")
        return 1
    folder = Path(config.run_dir) / "predict"
    result = frame(found)
    write_text(folder / "predicted.csv", result.to_csv(index=False))
    say(_speedups(found))
    say("\n" + _parts(found))
    plot = predicted_plot(result, f"Speed model: {config.name}", folder)[0]
    errors = [abs(row.error) for row in found if row.ran]
    say(
        f"\nmean size of the error: {100 * sum(errors) / len(errors):.1f} %, largest "
        f"{100 * max(errors):.1f} %"
    )
    say(f"saved: {folder / 'predicted.csv'}, {plot}")
    return 0


def _speedups(found: Sequence[Row]) -> str:
    columns = (
        Column("decoder", "decoder"),
        Column("tree", "tree"),
        Column("prediction", "codes a step", lambda made: f"{made.codes:.2f}"),
        Column("prediction", "predicted", lambda made: f"{made.speedup:.2f}"),
        Column("", "measured", lambda row: interval(row.measured, 2) if row.ran else ""),
        Column("", "error", lambda row: percent(row.error, sign="+") if row.ran else ""),
    )
    return terminal(filled(columns, found))


def _parts(found: Sequence[Row]) -> str:
    """Milliseconds of a step and its parts, predicted and as the run charged them; AR's first."""
    names = ("step", "draft", "forward", "accept")
    rows = [
        [name, _ms(now), _ms(then), *[ABSENT] * (2 * len(names) - 2)]
        for name, now, then in dict.fromkeys(row.ar for row in found)
    ]
    rows += [
        [row.decoder, *(_ms(getattr(s, n)) for n in names for s in (row.step, row.recorded))]
        for row in found
        if row.ran
    ]
    headings = ["ms a step", *(f"{n} {k}" for n in names for k in ("pred.", "run"))]
    return terminal(of_cells(headings, rows))


def _ms(seconds: float) -> str:
    return number(1e3 * seconds, 2)


def cmd_tune(words: Sequence[str]) -> int:
    """Searches trees and rules, prints the frontier, measures the best against AR and writes the
    winner as a decoder. 1 where nothing is in the class asked for, or nothing could be measured."""
    from bench.predict.measured import measure
    from bench.predict.settings import compose_tune
    from bench.predict.tune import choose, eligible, entry_of, explore, frontier
    from bench.predict.tuned import claim

    told = compose_tune(words)
    folder = Path(told.study.run_dir)
    out = Path(told.tune.out) if told.tune.out else folder / "decoder" / "tuned.yaml"
    claim(out)
    ready_folder(folder)
    search, prompts = _loaded(told)
    candidates = explore(search, prompts)
    kept = eligible(search, candidates)
    front = frontier(kept)
    say(_frontier(front, len(candidates), len(kept)))
    chosen = choose(search, kept)
    entries, verdicts = [entry_of(search, c) for c in chosen], search.verdicts
    if not chosen:
        complain(_nothing(told, candidates, kept, verdicts))
    del search
    _release()
    measured = measure(told.study, entries, folder) if entries else {}
    _write(told, candidates, kept, front, verdicts, measured, folder)
    if not chosen:
        return 1
    say("\n" + _measured(chosen, measured, verdicts))
    if not measured:
        complain(f"no chosen decoder could be measured; the rows below {folder / 'measured'} say "
                 "why (column error)")  # fmt: skip
        return 1
    best = max(measured, key=lambda name: measured[name].speedup.value)
    _winner(told, next(e for e in entries if e.name == best), measured[best], verdicts, out)
    return 0


def _nothing(
    told: TuneStudy,
    candidates: Sequence[Candidate],
    kept: Sequence[Candidate],
    verdicts: dict[str, str],
) -> str:
    """Why no candidate is left, and what to change."""
    if not kept:
        least = min(c.tv for c in candidates)
        return (
            f"no candidate's output TV is at most tune.tv={told.tune.tv:g}, the least is "
            f"{least:.3f}; raise tune.tv or add milder rules to tune.rules"
        )
    judged = "; ".join(f"{name}: {words}" for name, words in sorted(verdicts.items()))
    return (
        f"the exactness gate finds no candidate {CLASS[told.tune.exactness]} ({judged}); add "
        "milder rules to tune.rules or widen tune.exactness"
    )


def _loaded(told: TuneStudy) -> tuple[Search, list[str]]:
    """The search on its model, and the prompts to record on: those after the measured ones."""
    from bench.predict.tune import begin
    from bench.run.session import opened

    kept = told.study.latency.prompts
    own = opened(told.study, kept + told.tune.prompts)
    return begin(told, own.model), [prompt.text for prompt in own.prompts[kept:]]


def _release() -> None:
    """Gives the model's memory back before the runner loads its own."""
    import torch

    gc.collect()
    if torch.cuda.is_available():
        torch.cuda.empty_cache()


def _frontier(front: Sequence[Candidate], count: int, kept: int) -> str:
    head = f"{count} candidates, {kept} within the limits"
    if not front:
        return head
    columns = (
        Column("rule", "rule", lambda rule: rule.label),
        Column("tree", "tree", lambda tree: tree.label),
        Column("prediction", "codes a step", lambda made: f"{made.codes:.2f}"),
        Column("prediction", "predicted speed-up", lambda made: f"{made.speedup:.2f}"),
        Column("moved", "mass moved", figures(3)),
        Column("tv", "output TV", figures(3)),
        Column("derived", "acceptance", lambda own: "derived" if own else "recorded"),
    )
    shown = list(reversed(front))[:SHOWN]
    return f"{head}; not beaten in speed and quality:\n{terminal(filled(columns, shown))}"


def _measured(
    chosen: Sequence[Candidate], measured: dict[str, Measured], verdicts: dict[str, str]
) -> str:
    rows = []
    for c in chosen:
        seen, predicted = measured.get(c.name), c.prediction
        if seen is None:
            rows.append([c.name, f"{predicted.speedup:.2f}", "failed", "", "", "", ""])
            continue
        ratio = seen.speedup
        rows.append(
            [c.name, f"{predicted.speedup:.2f}",
             interval(ratio, 2), percent(predicted.speedup / ratio.value - 1, sign="+"),
             f"{predicted.codes:.2f}", f"{seen.mal:.2f}", verdicts.get(c.name, "")]
        )  # fmt: skip
    headings = ["decoder", "predicted", "measured", "error", "codes predicted", "measured"]
    return terminal(of_cells([*headings, "verdict"], rows))


def _write(
    told: TuneStudy,
    candidates: Sequence[Candidate],
    kept: Sequence[Candidate],
    front: Sequence[Candidate],
    verdicts: dict[str, str],
    measured: dict[str, Measured],
    folder: Path,
) -> None:
    from bench.predict.measured import table as rows_of
    from bench.report.plots.predict import frontier_plot

    rows = rows_of(candidates, kept, front, verdicts, measured)
    write_text(folder / "tune.csv", rows.to_csv(index=False))
    plot = frontier_plot(rows, f"Search on {told.study.model.name}", folder)[0]
    say(f"\nsaved: {folder / 'tune.csv'}, {plot}")


def _winner(
    told: TuneStudy, entry: DecoderEntry, found: Measured, verdicts: dict[str, str], out: Path
) -> None:
    from bench.predict.tuned import MARK, command, write_decoder

    ratio, verdict, study = found.speedup, verdicts[entry.name], told.study
    run = command(out, told.words)
    comments = [
        f"{entry.name}: {ratio.value:.2f} times AR [{ratio.lo:.2f}, {ratio.hi:.2f}], {verdict}.",
        f"{MARK} for {study.model.name} on {study.backend.device} "
        f"({study.backend.dtype}, {study.backend.name}).",
    ]
    write_decoder(out, entry, verdict.split(" (")[0], comments)
    say(f"winner: {entry.name}, written to {out}; to run it:\n  {run}")
