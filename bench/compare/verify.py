"""`python -m bench verify RUN`: a part of a run made again, here, and held against its rows.

Why a part: a second person should be able to confirm a published row in minutes. Codes follow from
seed, prompt and weights alone, so on the same kind of processor every image must be equal bit by
bit; a speed-up is compared as `bench diff` compares two runs. The run is made from its study.json,
so no study of that name need be here.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from bench.compare.chance import BOTH, SPEEDUP, Finding, Side, findings, read_sides, same_images
from bench.compare.diff import heads
from bench.config.compose import recomposed
from bench.config.differences import MACHINES, differences
from bench.config.schedule import part_of
from bench.config.words import fraction, with_folders
from bench.console import say
from bench.data.errors import ConfigError
from bench.records.load import plain, read_rows
from bench.records.run_json import FILE, read_record
from bench.records.study import PLACE, PROMPT, changed, identity_of, read_identity
from bench.report.table import ABSENT, Column, filled, interval, terminal

LEVEL = 0.05  # of false discoveries
LESS = 0.05  # of a speed-up that an hour of a quiet machine may cost
CONFIRMED, DIFFERS, UNKNOWN = "confirmed", "not confirmed", "cannot be compared"
MADE_BY = (
    "schema_version", *PLACE, *PROMPT, "cpu", "gpu", "batch", "versions", "weights_hash", "sources"
)  # fmt: skip
ELSEWHERE = (
    "Another processor or PyTorch rounds products differently, so codes may differ from some place "
    "on, and a speed-up is of its machine."
)


@dataclass(frozen=True)
class Compared:
    """A decoder of the run and here. equal of images: those with the same codes or picture, of
    those that both have; codes: per forward on the rows that both have, then and now; speed: of the
    speed-ups, now over then, None where there is none to compare."""

    sides: tuple[Side, Side]
    equal: int
    images: int
    codes: tuple[float, ...]
    speed: Finding | None
    verdict: str
    why: str


def cmd_verify(words: Sequence[str]) -> int:
    """Make a part of a run again and compare: the same images, the same speed-ups?
    Also of a published folder. Decodes the first prompts of each protocol, with the settings in
    the run's study.json, into a folder of its own: no gate, no quality figures, no page. Imports
    what that file names. Exit status 1 where something is not confirmed.
    Usage: RUN [setting=value ...]
    Settings:
        share=X  how much of it; at least one batch and two timed images (default: 0.1)
        out=DIR  where it is made (default: results/runs/<folder>_verify)
    Example: verify results/tables/main

    Raises ConfigError, FolderError, and what a run raises.
    """
    from bench.run.finish import finish
    from bench.run.runner import run_study

    folders, given = with_folders(words, ("share", "out"), "verify")
    if len(folders) != 1:
        raise ConfigError(f"expected one run folder, found {len(folders)}; write `verify RUN`")
    run, share = folders[0], fraction("share", given.get("share", "0.1"), "0.1 is a tenth")
    said, then = read_identity(run), read_sides(run)
    if (run / FILE).is_file():
        read_record(run / FILE)  # a record that was changed confirms nothing
    out = Path(given.get("out") or f"results/runs/{run.resolve().name}_verify")
    if out.resolve() == run.resolve():
        raise ConfigError(f"out={out} is the run itself; name another folder")
    study = part_of(recomposed(said["config"], str(run / "study.json")), share)
    study = replace(study, run_dir=str(out), keep_images=True)
    finish(study, run_study(study, said.get("attention", ())))
    elsewhere = differences(said["machine"], read_identity(out)["machine"], MACHINES)
    found = compared(then, read_sides(out), bool(elsewhere))
    table = terminal(filled(COLUMNS, found))
    notes = [f"{elsewhere}. {ELSEWHERE}"] if elsewhere else []
    say("\n".join([*heads([one.sides for one in found]), table, *notes, *_since(run, out)]))
    return int(any(one.verdict == DIFFERS for one in found))


def compared(
    then: Mapping[str, Side], now: Mapping[str, Side], elsewhere: bool = False
) -> list[Compared]:
    """Every decoder of a run, and what of it was made again; elsewhere: on another machine."""
    sides = [(then[name], now[name]) for name in then if name in now]
    speeds = {f.b: f for f in findings(sides, LEVEL) if f.figure == SPEEDUP}
    found = [_compared(*both, speeds.get(both[0].decoder)) for both in sides]
    if not elsewhere:
        return found
    return [replace(one, verdict=UNKNOWN, why="other machine") for one in found]


def _compared(then: Side, now: Side, speed: Finding | None) -> Compared:
    """The verdict on one machine."""
    both, same = same_images(then, now)
    codes = tuple(
        float((both[f"mal{end}"] * both[f"nfe{end}"]).sum() / max(both[f"nfe{end}"].sum(), 1))
        for end in BOTH
    )
    wrong = [f"{same.count(False)} of {len(same)} images differ"] if False in same else []
    if not math.isclose(*codes, rel_tol=1e-6):
        wrong.append("codes per forward differ")
    if speed is not None and speed.verdict == "slower" and speed.value < 1 - LESS:
        wrong.append("a smaller speed-up")
    unknown = "" if len(both) else "no image of both"
    if speed is None and not (then.is_baseline or math.isnan(then.entry.number("speedup"))):
        unknown = unknown or then.unmeasured or now.unmeasured or "too few timed images"
    verdict = DIFFERS if wrong else UNKNOWN if unknown else CONFIRMED
    why = ", ".join(wrong) or unknown
    return Compared((then, now), sum(same), len(same), codes, speed, verdict, why)


def _since(run: Path, out: Path) -> list[str]:
    """What code and weights of a decoder have changed."""
    then, now = (read_rows(folder, MADE_BY).drop_duplicates("decoder") for folder in (run, out))
    made = {row["decoder"]: identity_of(row) for row in plain(now)}
    lines = []
    for row in (row for row in plain(then) if row["decoder"] in made):
        wanted = {key: made[row["decoder"]][key] for key in ("sources", "weights_hash")}
        found = changed(row, wanted)
        lines += [f"{row['decoder']}: {found.why} since"] if found else []
    return lines


COLUMNS = (
    Column("", "decoder", lambda c: c.sides[0].decoder),
    Column("", "images equal", lambda c: f"{c.equal} of {c.images}" if c.images else ABSENT),
    Column("codes", "codes per forward", lambda both: " -> ".join(f"{x:.2f}" for x in both)),
    Column("", "speed-up then", lambda c: interval(c.sides[0].entry.interval("speedup"), 2)),
    Column("", "now", lambda c: interval(c.sides[1].entry.interval("speedup"), 2)),
    Column("speed", "now / then", lambda found: interval(found, 3) if found else ABSENT),
    Column("", "verdict", lambda c: f"{c.verdict} ({c.why})" if c.why else c.verdict, words=True),
)
