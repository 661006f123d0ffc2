"""The commands of the command line: each takes its arguments and returns an exit status.

Why lazy imports: `list` needs neither torch nor Hydra, `report` needs no model.
"""

from __future__ import annotations

import shlex
import textwrap
from collections.abc import Sequence
from functools import cache, partial
from importlib.resources import files
from itertools import takewhile
from pathlib import Path
from typing import TYPE_CHECKING

import yaml

from bench.config.arguments import divided, folders, groups, key_of
from bench.console import complain, say
from bench.data.errors import ConfigError, unknown
from bench.report.table import table_of_texts, terminal

if TYPE_CHECKING:
    from bench.analyse.run import Run
    from bench.config.schema import StudyConfig

RUNS = Path("results/runs")
# Their comments explain every setting of a study, a decoder, a training and a recipe.
ROOTS = ("config.yaml", "entry.yaml", "train_config.yaml", "recipe_config.yaml")

FAST = "--fast"  # of `check`
WIDTH = 100  # columns of `list`


def cmd_run(arguments: Sequence[str]) -> int:
    """Run a study (or resume it) and write its summary and report.
    Decodes all images, judges every decoder, writes rows, summary.csv and the report. Exit
    status 1 where some decoder failed.

    settings (and all others of a study: `python -m bench list settings`):
      study=NAME         which study (`list study`; default: main)
      decoders=[a,b]     decoders of the study, or any of conf/decoder
      run_dir=DIR        the run's folder (default: results/runs/<study>)
      latency.prompts=N  timed images per decoder; 0 leaves the timing out
      quality.images=N   images per decoder for the quality figures; 0 leaves them out
      retry_failed=true  decode failed rows again
      dry=true           decode nothing: say how much disk, memory and time the run needs
      resume=force       keep rows that other code or weights have decoded, and mark the run
      shard=I/N          decode a part: every N-th quality image from the I-th on
      ray.shards=N       parts of the quality images, each a task of Ray
      ray.gpus=X         GPUs of each task (default: 0)
      ray.address=WHERE  auto or ray://HOST:PORT of a cluster (default: on this machine)

    example:
      python -m bench run study=main decoders=[ar,lantern] latency.prompts=12 quality.images=64
    """
    from bench.config.compose import compose_study
    from bench.run.needs import DrySettings, dry_run
    from bench.run.shards import Shard, part_of, run_on_ray, run_part

    dry, arguments = divided(DrySettings, arguments)
    part, arguments = part_of(arguments)
    config = compose_study(arguments)
    if dry.dry:
        return dry_run(config)
    if part is None:
        return _run(config, arguments)
    if isinstance(part, Shard):
        return run_part(config, part, arguments, partial(_run, config, arguments))
    return run_on_ray(config, part, arguments)


def _run(config: StudyConfig, arguments: Sequence[str]) -> int:
    """Runs a study that these arguments describe, here; 1 where some decoder failed."""
    from bench.measure.device import device_name
    from bench.run.finish import explain_interrupts, finish, make_scorer
    from bench.run.needs import require_disk
    from bench.run.runner import run_study
    from bench.store.facts import write_study

    say(f"backend={config.backend.name} on {device_name(config.backend)}")
    say(f"{require_disk(config)}")
    with explain_interrupts(config):
        scorer = make_scorer(config)
        result = run_study(config)
        write_study(
            result.path, {"command": shlex.join(["python", "-m", "bench", "run", *arguments])}
        )
        run = finish(config, result, scorer)
    if config.report:
        _write_report(run)
    else:
        say(f"rows: {run.folder / 'records.parquet'}")
    failed = {e.name: e.text("status") for e in run.entries if e.text("status") != "ok"}
    for name, status in failed.items():
        complain(f"{name}: {status}")
    return 1 if failed else 0


def cmd_sweep(arguments: Sequence[str]) -> int:
    """Run a study once for each value: sweep acceptance.delta=0.05,0.1 tree=chain,static.
    One decoder for each value, or combination of values, of settings that are given several; a
    decoder without such a setting runs once. Resumes as `run` does; `report` makes the tables
    again from the same arguments with this run_dir.

    settings (and all others of a study: `python -m bench list settings`):
      study=NAME        which study (`list study`; default: main)
      decoders=[a,b]    decoders of the study, or any of conf/decoder
      PART.SETTING=A,B  values of a setting of decoders: acceptance.delta=0.05,0.1
      PART=A,B          options of a part: tree=chain,static
      run_dir=DIR       the run's folder (default: results/runs/<study>_sweep)

    example:
      python -m bench sweep study=main decoders=[ar,lantern] acceptance.delta=0.05,0.1,0.2
    """
    from bench.config.compose import sort_overrides

    if not any(len(values) > 1 for values in sort_overrides(arguments).entry):
        raise ConfigError(
            "nothing to sweep: no setting of a decoder has several values; give one, as in "
            "acceptance.delta=0.1,0.2, or use `run`"
        )
    if not any(key_of(one) == "run_dir" for one in arguments):
        arguments = [*arguments, "run_dir=results/runs/${name}_sweep"]
    return cmd_run(arguments)


def cmd_report(arguments: Sequence[str]) -> int:
    """Table, plots and page again, also while a run goes on: report [RUN RUN ...].
    Takes the arguments of a run, or its folder. Several folders of finished ones, of one study on
    one machine an hour or more apart, make one report, whose speed-ups have the machine's interval.

    settings (and all others of a study: `python -m bench list settings`):
      study=NAME   which study (`list study`; default: main)
      run_dir=DIR  the run's folder (default: results/runs/<study>)
      name=X       the run in results/runs/X
      out=DIR      where the report goes; nothing is then written into the run's folder
      columns=[A]  columns of table.tex, by their headings: columns=[speed-up,output TV]

    example:
      python -m bench report results/runs/a results/runs/b results/runs/c out=results/runs/three
      python -m bench report study=smoke
    """
    from bench.analyse.analyse import load
    from bench.analyse.several import several, write_spread
    from bench.config.compose import compose_study
    from bench.report.page import PlaceSettings, check_place
    from bench.run.finish import read_unfinished
    from bench.store.facts import STUDY, require_same

    place, arguments = divided(PlaceSettings, arguments)
    check_place(place.out)
    places, arguments = folders(arguments)
    key, _, value = arguments[0].partition("=") if len(arguments) == 1 else ("", "", "")
    folder = {"run_dir": Path(value), "name": RUNS / value}.get(key)
    if folder is not None and (folder / STUDY).is_file():
        places, arguments = [*places, folder], []
    if places and arguments:
        raise ConfigError(
            f"expected run folders or the settings of a run, found both: {' '.join(arguments)}"
        )
    if not places:
        config = compose_study(arguments)
        places = [Path(config.run_dir)]
        require_same(places[0], {"config_hash": config.hash, "config": config.measured()})
    if len(places) == 1:
        run = read_unfinished(places[0]) or load(places[0])
    else:
        if place.out is None:
            raise ConfigError("a report of several runs belongs to none of them: say out=DIR")
        runs = [load(folder) for folder in places]
        run = several(runs)
        write_spread(place.out, runs, run)
    _write_report(run, place.out, place.headings)
    return 0


def _write_report(
    run: Run, folder: Path | None = None, columns: Sequence[str] | None = None
) -> None:
    from bench.report.page import write_report

    written = write_report(run, folder, columns)
    say((written / "table.txt").read_text(encoding="utf-8"))
    say(f"report: {written / 'index.html'}")


def cmd_check(arguments: Sequence[str]) -> int:
    """Exactness gate: is every decoder of a study exact, relaxed or broken?
    Nothing is timed. Each verdict is shown as it falls; after a stop the same command goes on. Exit
    status 1 where one is not as expected.

    settings (and all others of a study: `python -m bench list settings`):
      study=NAME      which study (`list study`; default: main)
      decoders=[a,b]  decoders of the study, or any of conf/decoder
      --fast          the acceptance rules alone, in seconds: no loop, drafter or image

    example:
      python -m bench check study=smoke
    """
    from bench.config.compose import compose_study
    from bench.config.schema import digest, variants
    from bench.data.version import version_line
    from bench.gate import GateReport, check_rule
    from bench.gate.target import examine
    from bench.measure.device import prepare
    from bench.prompts import load_prompts
    from bench.run.decoders import Decoders, load_model
    from bench.run.finish import run_gate
    from decoders.cache_folder import folder

    fast = FAST in arguments
    config = compose_study([one for one in arguments if one != FAST])
    model = load_model(config, prepare(config.backend))
    every = variants(config, model.sampling)
    built = Decoders(model, every)  # what `run` refuses is refused before the first verdict

    @cache
    def captions() -> list[str]:
        return [prompt.text for prompt in load_prompts(config.prompts, 2)]

    def fell(report: GateReport) -> None:
        say(f"{report.decoder}: {report.verdict}")

    if fast:
        reports = run_gate(model, every, captions, fell=fell, judge=check_rule)
    else:
        examine(model, captions, max(variant.sampling.cfg for variant in every))
        what = [version_line(), model.name, built.digests, *map(repr, every)]
        kept = folder() / "check" / f"{digest(what)}.json"
        reports = run_gate(model, every, captions, kept, fell)
    lines = [report.line for report in reports]
    say(terminal(table_of_texts([*lines[0]], [[*line.values()] for line in lines])))
    wrong = [report.decoder for report in reports if not report.as_expected]
    if wrong:
        complain(f"not as expected: {', '.join(wrong)}")
    return 1 if wrong else 0


def cmd_list(arguments: Sequence[str]) -> int:
    """Decoders, models, studies, ...; `list settings`: what can be set; `list columns`: of tables.

    arguments:
      GROUP         the options of a group: decoder, model, study, tree, ...
      GROUP=OPTION  the settings of one option
      settings      all settings of a study and a training
      columns       the columns of records.parquet and summary.csv: type, unit, meaning

    example:
      python -m bench list acceptance=lantern
    """
    options = groups()
    for argument in arguments or options:
        group, _, name = argument.partition("=")
        if group not in options:  # its plural is taken too
            group = "study" if group == "studies" else group.removesuffix("s")
        if group == "column":
            from bench.store.columns import ROW, SUMMARY

            heads, texts = ("column", "type", "unit", "meaning"), []
            for file, columns in (("records.parquet", ROW), ("summary.csv", SUMMARY)):
                cells = [(c.name, c.type, c.unit, c.meaning) for c in columns]
                texts.append(f"{file}\n{terminal(table_of_texts(heads, cells))}")
            say("\n\n".join(texts))
        elif group == "setting":
            say("\n".join((files("conf") / name).read_text() for name in ROOTS))
        elif group not in options:
            parts = [
                one for one, texts in options.items()
                if any(group in (yaml.safe_load(text) or ()) for text in texts.values())
            ]  # fmt: skip
            hint = "".join(f". {group} is set in {one}: `list {one}=NAME`" for one in parts[:1])
            raise ConfigError(unknown("group", group, [*options, "settings", "columns"]) + hint)
        elif not name:
            say(f"{group}=")
            for option, text in options[group].items():
                say(described(option, text, max(map(len, options[group]))))
        elif name in options[group]:
            say(options[group][name].rstrip())
        else:
            raise ConfigError(unknown(group, name, options[group]))
    return 0


def described(option: str, text: str, width: int) -> str:
    """An option behind its name, by the comment at the head of its YAML. Indented lines of it are
    commands, and stay as they are."""
    head = takewhile(lambda line: line.startswith("#"), text.splitlines())
    lines = [line[2:] for line in head if not line.startswith("# @")]
    prose = " ".join(line for line in lines if not line.startswith(" "))
    indent, named = " " * (width + 4), f"  {option:<{width}}  {prose}".rstrip()
    filled = textwrap.fill(named, WIDTH, subsequent_indent=indent, break_on_hyphens=False)
    return "\n".join([filled, *(indent + line for line in lines if line.startswith(" "))])
