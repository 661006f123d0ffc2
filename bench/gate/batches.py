"""Batch invariance: the same noise gives an image the same codes alone, in a batch, on another row
of it, and on a row that another image has left.

A decoder that draws random numbers of its own has other codes in every batch, and may be exact all
the same. It cannot be enumerated, and is judged by samples.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from bench.gate.result import Check, timed
from bench.gate.small import GateCase, Trial
from decoders.api import DecoderError
from decoders.noise import ACCEPT_SLOT, DRAFT_SLOT

SEEDS = 17, 18  # of two looks
IMAGES, IMAGES_ALONE = 17, (1, 4)  # more than most runs decode at once
WAITING, REFILLED_ROWS = 9, 3  # images on so many rows, each of which is refilled twice
# Before these even rows accept what is certain alone, so that later steps are late ones.
SLOW_POSITIONS = 130
REFUSED = 1 - 2.0**-23  # the number of a test that nothing else passes
ROW_INDEX = ". Does its session read `codes` behind `count`, or keep an index of rows?"


@timed
def batches_check(case: GateCase) -> Check:
    """One image that differs may be rounding, so others are looked at then. A decoder that draws
    random numbers of its own cannot be enumerated."""
    fault, differing = "", 0
    for seed in SEEDS:
        run = case.trial((*case.sizes.batches, seed), IMAGES)
        run.noise.uniform[::2, :SLOW_POSITIONS, ACCEPT_SLOT:DRAFT_SLOT] = REFUSED
        whole = run.generate().codes
        for way, images, codes in _in_other_batches(run):
            differ = codes != whole[images]  # [n, L]
            if not bool(differ.any()):
                continue
            if fault:
                differing += int(differ.any(-1).sum())
                continue
            with RandomOperations() as random:
                again = run.generate().codes
            reason, names = "its codes change with a second run of the same noise", random.names
            if torch.equal(whole, again):
                reason = f"it draws random numbers of its own ({', '.join(sorted(names))}), others "
                reason = f"{reason}in every batch" * bool(names)
            if reason:
                return Check("batches", not_enumerated=reason)
            index, position = differ.nonzero()[0].tolist()
            first = f"image {images[index]} has other codes {way} than in a batch, "
            first += f"from position {position} on"
            fault = first + ROW_INDEX * ("refilled" in way)
            differing += int(differ.any(-1).sum())
        if differing != 1:
            break
    summary = f"{IMAGES} images in other batches"
    return Check("batches", fault * (differing > 1), summary=summary)


def _in_other_batches(run: Trial) -> Iterator[tuple[str, list[int], Tensor]]:
    """The codes [n, L] of some of the images, by how they are decoded."""
    generate = run.decoder.generate
    for i in IMAGES_ALONE:
        yield "alone", [i], generate(run.text.rows([i]), run.noise.rows([i])).codes
    others = [*range(IMAGES)][::-1]
    yield "on another row", others, generate(run.text.rows(others), run.noise.rows(others)).codes
    if run.decoder.refills:
        with suppress(DecoderError):  # a loop may say that it goes on with no other image
            some = [*range(WAITING)]
            images = run.text.rows(some), run.noise.rows(some)
            codes = generate(*images, rows=REFILLED_ROWS).codes
            yield f"on {REFILLED_ROWS} rows that are refilled", some, codes


class RandomOperations(TorchDispatchMode):
    """Notes the operations of torch that draw random numbers, except those of attention, which do
    so for dropout alone."""

    def __init__(self) -> None:
        super().__init__()
        self.names = set[str]()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        name = func.overloadpacket.__name__
        if torch.Tag.nondeterministic_seeded in func.tags and "attention" not in name:
            self.names.add(name)
        return func(*args, **(kwargs or {}))
