"""`python -m bench check`: the exactness gate alone."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict, replace
from pathlib import Path
from textwrap import fill
from typing import TYPE_CHECKING

from bench.console import complain, say
from bench.report.table import table_of_texts, terminal

if TYPE_CHECKING:
    from bench.store.facts import Verdict

FAST = "--fast"
WIDTH = 100  # columns of the terminal that a sentence takes


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
    from bench.config.schema import digest
    from bench.files import write_text
    from bench.gate import RealModel, check_rule, judge
    from bench.measure.device import prepare, provenance
    from bench.run.contender import built_study, examine_target, load_model
    from bench.store.run_folder import RunFolder
    from bench.version import version_line
    from decoders.cache_folder import folder as cache_folder

    fast, kept = FAST in arguments, None
    config = compose_study([one for one in arguments if one != FAST])
    # What `run` refuses is refused before the first verdict.
    device = prepare(config.backend)
    model, folder = load_model(config, device), RunFolder(Path(config.run_dir))
    study = built_study(config, model, folder, provenance(device))
    if not fast:
        examine_target(study)
        digests = {contender.name: contender.digest for contender in study.contenders}
        judged = [RealModel.of(model), *study.variants]  # dtype and kernel count too
        what = [version_line(), model.name, digests, *map(repr, judged)]
        kept = cache_folder() / "check" / f"{digest(what)}.json"
    there = read_verdicts(kept)

    def tell(name: str, verdict: Verdict) -> None:
        there[name] = verdict
        if kept is not None:
            plain = {one: asdict(replace(each, checks=())) for one, each in there.items()}
            write_text(kept, json.dumps(plain))
        seconds = ", ".join(f"{one.name} {one.seconds:.1f} s" for one in verdict.checks)
        say(f"{name}: {verdict.text}" + f" ({seconds})" * bool(seconds))

    check = check_rule if fast else None
    verdicts = judge(study.variants, model, study.rows, before=there, fell=tell, check=check)
    if kept is not None:
        kept.unlink(missing_ok=True)
    heads = ("decoder", "verdict", "figure", "expected")
    lines = [[n, v.text, f"{v.figure:.4g}", v.expected] for n, v in verdicts.items()]
    say(terminal(table_of_texts(heads, lines)))
    for name, verdict in verdicts.items():
        if verdict.detail:
            say(fill(f"{name}: {verdict.detail}", WIDTH, subsequent_indent="  "))
    wrong = [name for name, verdict in verdicts.items() if not verdict.as_expected]
    if wrong:
        complain(f"not as expected: {', '.join(wrong)}")
    return 1 if wrong else 0


def read_verdicts(kept: Path | None) -> dict[str, Verdict]:
    """The verdicts in a file, by decoder; none where there is no such file, or a damaged one."""
    from bench.store.facts import Verdict

    if kept is None or not kept.is_file():
        return {}
    try:
        return {name: Verdict(**one) for name, one in json.loads(kept.read_bytes()).items()}
    except (ValueError, TypeError, AttributeError):
        return {}
