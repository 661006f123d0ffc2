"""The law of whole images of a decoder, by enumeration: every loop, proposer and verifier as they
are, on a table model of V = 3 codes and n = 3 places (METHODS2, "One gate for all", 1).

Nothing is sampled (`bench.judge.gate.branching`), so an exact decoder's law equals AR's to 1e-12,
and an error of 1e-9 is seen. Decoders that have too many ways to an image are followed along the
likeliest ones: what they put on an image beyond its probability is then an error all the same.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch
from torch import Tensor

from bench.judge.gate.branching import Outcome, Scripted, explore
from bench.judge.gate.reference import processed
from bench.judge.gate.report import Finding
from bench.judge.gate.small import Real, small_sampling, small_spec
from bench.judge.gate.table import table_model
from bench.run.outcome import Failure, attempt
from decoders.api import Decoder, ImageModel, Sampling
from decoders.compose import DecoderSpec, PartSpec, build_decoder

VOCAB, LENGTH, SEED = 3, 3, 3
MOST = 25_000  # rows that are run at most
CERTAIN = 1e-9  # a total variation that is no rounding
DRAFTER = PartSpec("bench.judge.gate.table.TableDrafter")


@dataclass(frozen=True)
class WholeLaw:
    """law [V**n] float64, in base-V order, of what was followed; wanted [V**n]: AR's; rest: the
    probability of what was not followed; rows: ways to an image that were; forwards: mean target
    forwards of an image, prefill not counted (of what was followed)."""

    law: Tensor
    wanted: Tensor
    rest: float
    rows: int
    forwards: float

    @property
    def tv(self) -> float:
        """The total variation where all was followed, else the least that it can be."""
        return float((self.law - self.wanted).clamp_min(0.0).sum())

    @property
    def complete(self) -> bool:
        return self.rest < CERTAIN / 10


def ar_law(model: ImageModel, sampling: Sampling) -> Tensor:
    """[V**n] float64, from the law's definition: no cache, no mask, filters written a second
    time."""
    target = model.target
    vocab, length = target.vocab_size, target.length
    images = torch.cartesian_prod(*[torch.arange(vocab)] * length).view(-1, length)
    logits = target.net(target.context(images)[:, :-1])  # type: ignore[attr-defined]
    return processed(logits, sampling).gather(-1, images[..., None])[..., 0].prod(-1)


def whole_law(
    decoder: Decoder, model: ImageModel, sampling: Sampling, most: int = MOST
) -> WholeLaw:
    """The law of the images of a decoder that was built on a `table_model`. Raises NotEnumerable
    where a random number is used in a way that cannot be followed."""
    target = model.target
    weights = target.vocab_size ** torch.arange(target.length - 1, -1, -1)

    def run(noise: Scripted) -> Outcome:
        made = decoder.generate(model.text.encode(["x"] * len(noise.uniform)), noise)
        image = (made.codes * weights).sum(-1)
        value = torch.stack([image, made.trace.target_calls.long()], 1)
        return Outcome(value, made.trace.step.long().amax(-1))

    found = explore(run, target.length, most, lambda: target.calls)  # type: ignore[attr-defined]
    wanted = ar_law(model, sampling)
    law = torch.zeros_like(wanted).index_add_(0, found.value[:, 0], found.weight)
    forwards = float(found.weight @ found.value[:, 1].double()) / max(1e-300, 1 - found.rest)
    return WholeLaw(law, wanted, found.rest, len(found.weight), forwards)


def table_spec(spec: DecoderSpec, model: ImageModel, real: Real) -> DecoderSpec:
    """The composition on a table model: k relative to its codebook, its tree cut to what fits, and
    a drafter of table models in the place of its own."""
    made = small_spec(replace(spec, drafter=None), model, real)
    return made if spec.drafter is None else replace(made, drafter=DRAFTER)


def whole_check(spec: DecoderSpec, sampling: Sampling, real: Real) -> Finding:
    """The law of whole images against AR's. Fault: a total variation beyond rounding. A decoder
    that cannot be built on a table model, or followed there, is left to the sampled images."""
    model = table_model(VOCAB, LENGTH, SEED)
    plain = small_sampling(replace(sampling, cfg=1.0), VOCAB, real)

    def enumerated() -> WholeLaw:
        made = build_decoder(model, table_spec(spec, model, real), plain)
        return whole_law(made, model, plain)

    found = attempt(enumerated)
    if isinstance(found, Failure):
        return Finding("whole law", "", 0.0, {"whole law": {"not enumerated": found.error}})
    evidence = {"tv": found.tv, "not followed": found.rest, "ways": found.rows}
    evidence["forwards"] = found.forwards
    fault = ""
    if not found.tv <= CERTAIN:
        least = "" if found.complete else "at least "
        fault = (
            f"images of {VOCAB}**{LENGTH} do not follow the AR law: TV {least}{found.tv:.2g}, by "
            "enumeration"
        )
    return Finding("whole law", fault, found.tv if fault else 0.0, {"whole law": evidence})
