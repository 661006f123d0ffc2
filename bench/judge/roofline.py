"""roofline.csv and machine.json of a run: what each decoder's forwards take, beside their floors.

One row a decoder, from its timed images (latency protocol, batch 1): milliseconds of a whole step
(all but the prefill, over nfe), of an AR step or a forward over a draft (seconds_forward / nfe), of
a drafter call (seconds_draft / drafter_calls; growing the tree is part of it), their floors on this
machine (`bench.measure.floors`), and the share of a speculative step that acceptance, commit and
bookkeeping take (seconds_accept over the sum). A backend that runs a step as one graph tells its
parts not apart: then there is the whole step alone, which for AR is the AR step. Milliseconds are
medians over timings; a time over its floor is of the 10 % quantile, as a quiet moment has it and
not the best of a few. The machine is measured before every block of timed images
(`bench.measure.machine`), or here where it was not.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pandas as pd
import torch

from bench.config.schema import DecoderVariant
from bench.data.errors import Failure, attempt
from bench.data.files import write_text
from bench.judge.fairness import ROOFLINE, below_floor
from bench.judge.paired import latency_rows
from bench.measure.floors import Net, Unknown, Work, drafter_net, target_net
from bench.measure.machine import watch_of
from bench.measure.rates import MACHINE, MachineRates, read_rates
from decoders.api import ImageModel, Sampling
from decoders.compose import PartSpec, build_part
from decoders.noise import Noise

NAN = math.nan
QUIET = 0.1  # quantile over timings
PARTS = ("step", "ar", "forward", "draft")
COLUMNS = [
    "decoder", "backend", "device", "dtype", "threads", "batch", "guidance_rows", "codes", "images",
    *(f"{part}_{figure}" for part in PARTS for figure in ("ms", "floor_ms", "over_floor")),
    "accept_share",
    *(f"{part}_{figure}" for part in PARTS[1:] for figure in ("bytes", "operations")),
    "bytes_per_s", "large_bytes_per_s", "operations_per_s", "machine_spread", "note",
]  # fmt: skip


@dataclass(frozen=True)
class Needs:
    """Work of a decoder's forwards, or why it is not known; None: it makes no such forward."""

    ar: Work | Unknown
    forward: Work | Unknown | None
    draft: Work | Unknown | None

    def floor_ms(self, part: str, rates: MachineRates, calls: float) -> float:
        """Milliseconds; NaN where it is not known. A step of a tree is a verification and `calls`
        calls of the drafter; without a tree it is an AR step."""
        if part == "step":
            parts = [("ar", 1.0)] if self.forward is None else [("forward", 1.0)]
            parts += [("draft", calls)] if self.draft is not None else []
            return sum(times * self.floor_ms(one, rates, 1.0) for one, times in parts)
        work = getattr(self, part)
        return 1e3 * work.floor_seconds(rates) if isinstance(work, Work) else NAN


def roofline(
    folder: Path,
    model: ImageModel,
    every: Sequence[DecoderVariant],
    rows: pd.DataFrame,
    again: bool = False,
) -> pd.DataFrame | None:
    """Writes roofline.csv (and machine.json where any floor is known); returns the table. A step
    that takes less than its floor says that the floor is wrong: then the machine is measured again.

    rows: records.parquet. None, and nothing written, where no image was timed.
    """
    timed = latency_rows(rows)
    if timed.empty:
        return None
    target = target_net(model)
    first = timed.iloc[0]
    watch = watch_of(folder, model, str(first["gpu"] or first["cpu"]))
    rates = None if watch is None else (None if again else watch.known()) or watch.look()
    lines = []
    for one in every:
        mine = timed[timed.decoder == one.name]
        if len(mine):
            lines.append(_line(one, mine, needs_of(one, mine, model, target), rates))
    table = pd.DataFrame(lines, columns=COLUMNS)
    if not again and any(below_floor(name, table) for name in table.decoder):
        return roofline(folder, model, every, rows, again=True)
    write_text(folder / ROOFLINE, table.to_csv(index=False))
    return table


def baseline_floors(
    folder: Path, every: Sequence[DecoderVariant], rows: pd.DataFrame
) -> pd.DataFrame | None:
    """Lines of roofline.csv of the decoders that make AR steps, without a model: what such a step
    reads is in machine.json of an unfinished run. None where it is not there yet."""
    rates, timed = read_rates(folder / MACHINE), latency_rows(rows)
    if rates is None:
        return None
    found = [(one, timed[timed.decoder == one.name]) for one in every]
    needs = Needs(Work(rates.step_bytes, 0.0), None, None)
    lines = [_line(one, own, needs, rates) for one, own in found if len(own) and steps_alone(own)]
    return pd.DataFrame(lines, columns=COLUMNS)


def needs_of(
    one: DecoderVariant, mine: pd.DataFrame, model: ImageModel, target: Net | Unknown
) -> Needs:
    """What the forwards of a decoder need, the mean over its timed images `mine`."""
    copies = one.sampling.guidance_rows
    if isinstance(target, Unknown):
        plain = steps_alone(mine)
        return Needs(target, None if plain else target, None if plain else target)
    ar = target.work(copies)
    if steps_alone(mine):
        return Needs(ar, None, None)
    forward = target.work(copies, 1 + float(mine.tree_nodes.iloc[0]))
    if one.entry.spec.drafter is None or not mine.drafter_calls.sum():
        return Needs(ar, forward, None)
    return Needs(ar, forward, _draft(one, mine, model, target))


def steps_alone(mine: pd.DataFrame) -> bool:
    """Whether every forward committed one code and nothing was drafted: AR steps."""
    return bool((mine.drafter_calls == 0).all() and (mine.mal <= 1).all())


def _draft(
    one: DecoderVariant, mine: pd.DataFrame, model: ImageModel, target: Net
) -> Work | Unknown:
    """A drafter call, the mean over an image's: the prefix and the committed codes are read once,
    the tree's codes once a step. (By Jensen, calls x max(mean) is at most the sum of maxima.)"""
    spec = one.entry.spec
    drafter = spec.drafter
    part: Any = None if drafter is None else attempt(lambda: build_part(drafter, model))
    if isinstance(part, Failure):
        return Unknown(f"the drafter cannot be built alone ({part.error})")
    net = drafter_net(getattr(part, "net", None), target)
    if isinstance(net, Unknown):
        return net
    calls, steps = float(mine.drafter_calls.mean()), float(mine.nfe.mean())
    grown = steps * drafted_on(spec.tree, model, one.sampling)
    codes = (net.slots + net.length + grown) / calls
    heads = (steps + grown) / calls
    return net.work(one.sampling.guidance_rows, codes, seen=net.half, heads=heads)


class Probe:
    """A drafter's session that counts the codes a tree drafts on from, with one row of noise."""

    def __init__(self, vocab: int) -> None:
        self.codes, self.calls = 0, 0
        self.root_code = torch.zeros(1, dtype=torch.long)
        self.logits = torch.randn(vocab, generator=torch.Generator().manual_seed(0))

    def advance(self, *_: Any) -> torch.Tensor:
        return self.logits[None]  # [1, V]

    def expand(self, codes: torch.Tensor, *_: Any) -> torch.Tensor:
        self.codes += codes.shape[1]
        return self.logits.expand(1, codes.shape[1], -1)  # [1, w, V]


@torch.inference_mode()
def drafted_on(spec: PartSpec | None, model: ImageModel, sampling: Sampling) -> int:
    """Codes that a tree gives its drafter in a step, the committed ones not counted: one tree is
    grown on noise. 0, a lower bound, for a tree that cannot be grown so."""
    if spec is None:
        return 0
    probe = Probe(model.target.vocab_size)

    def grow() -> None:
        noise = Noise.for_prompts(0, ["probe"], model.target.length)
        place = torch.ones(1, dtype=torch.long)
        build_part(spec, model).grow(probe, probe.advance(), sampling, noise, place)

    return 0 if isinstance(attempt(grow), Failure) else probe.codes


def _line(
    one: DecoderVariant, mine: pd.DataFrame, needs: Needs, rates: MachineRates | None
) -> dict[str, Any]:
    first, copies = mine.iloc[0], one.sampling.guidance_rows
    line: dict[str, Any] = dict.fromkeys(COLUMNS, NAN)
    line |= {key: first[key] for key in ("decoder", "backend", "device", "dtype", "threads")}
    line |= {"batch": int(first["batch"]), "guidance_rows": copies, "images": len(mine)}
    line["codes"] = 1 + int(first["tree_nodes"])
    measured, quiet = _measured(mine, needs, 0.5), _measured(mine, needs, QUIET)
    notes: list[str] = []
    for part in PARTS:
        work = getattr(needs, part, None)
        ms = measured.get(part, NAN)
        line[f"{part}_ms"] = ms
        if isinstance(work, Unknown) and str(work) not in notes:
            notes.append(str(work))
        if rates is not None:
            floor = needs.floor_ms(part, rates, float((mine.drafter_calls / mine.nfe).mean()))
            line |= {f"{part}_floor_ms": floor, f"{part}_over_floor": quiet.get(part, NAN) / floor}
        if isinstance(work, Work):
            line |= {f"{part}_bytes": work.bytes, f"{part}_operations": work.operations}
    line["accept_share"] = NAN if needs.forward is None else _accept_share(mine)
    line["note"] = "; ".join(notes)
    if rates is not None:
        line["bytes_per_s"], line["large_bytes_per_s"] = rates.bytes_per_s, rates.large_bytes_per_s
        line["operations_per_s"], line["machine_spread"] = rates.operations_per_s, rates.spread
    return line


def _measured(mine: pd.DataFrame, needs: Needs, share: float) -> dict[str, float]:
    """Milliseconds of each part that was told apart: this quantile over timings."""
    forwards = mine.nfe.where(mine.nfe > 0)
    step = (mine.seconds_total - mine.seconds_prefill) / forwards
    forward = mine.seconds_forward.where(mine.seconds_forward > 0) / forwards
    calls = mine.drafter_calls.where(mine.drafter_calls > 0)
    found = {"step": step}
    if needs.forward is None:
        found["ar"] = forward if forward.notna().any() else step
    elif forward.notna().any():
        found |= {"forward": forward, "draft": mine.seconds_draft / calls}
    return {part: 1e3 * float(seconds.quantile(share)) for part, seconds in found.items()}


def _accept_share(mine: pd.DataFrame) -> float:
    """Median of seconds_accept over draft + forward + accept; NaN where they are not told apart."""
    whole = mine.seconds_draft + mine.seconds_forward + mine.seconds_accept
    share = mine.seconds_accept / whole.where(whole > 0)
    return float(share.median()) if (mine.seconds_accept > 0).any() else NAN
