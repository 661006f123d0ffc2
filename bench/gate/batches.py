"""Batch invariance: the same noise gives an image the same codes a second time, alone, in a batch,
and in a row that another image has left.

A decoder that draws random numbers of its own has other codes in every batch, and may be exact all
the same. It cannot be enumerated, and is judged by samples.
"""

from __future__ import annotations

from contextlib import suppress
from inspect import signature
from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from bench.gate.report import CheckResult
from bench.gate.small import GateCase, Trial
from decoders.api import DecoderError

SEEDS = 17, 18  # of two looks
IMAGES, ROWS = 4, 2  # of a batch; rows that are refilled
ROW_INDEX = ". Does its session keep an index of rows? A new image's state overwrites it"


def batches_check(case: GateCase) -> CheckResult:
    """One image that differs may be rounding, so others are looked at then. Evidence "not
    enumerated": what shows that the decoder draws random numbers of its own."""
    fault, differing = "", 0
    for seed in SEEDS:
        run = case.trial((*case.sizes.batches, seed), IMAGES)
        whole = run.generate().codes
        if not torch.equal(whole, run.generate().codes):
            reason = "its codes change with a second run of the same noise"
            return CheckResult("batches", evidence={"not enumerated": reason})
        for way, codes in _in_other_batches(run).items():
            differ = codes != whole  # [B, L]
            if not bool(differ.any()):
                continue
            with RandomOperations() as random:
                run.generate()
            if names := ", ".join(sorted(random.names)):
                reason = f"it draws random numbers of its own ({names}), others in every batch"
                return CheckResult("batches", evidence={"not enumerated": reason})
            image, position = differ.nonzero()[0].tolist()
            first = (
                f"image {image} has other codes {way} than in a batch, from position {position} on"
            )
            fault = fault or first + ROW_INDEX * (way != "alone")
            differing += int(differ.any(-1).sum())
        if differing != 1:
            break
    summary = f"{IMAGES} images in other batches"
    return CheckResult("batches", fault * (differing > 1), summary=summary)


def _in_other_batches(run: Trial) -> dict[str, Tensor]:
    """The codes of the images [B, L], by how they are decoded."""
    generate = run.decoder.generate
    each = [generate(run.text.rows([i]), run.noise.rows([i])).codes for i in range(IMAGES)]
    ways = {"alone": torch.cat(each)}
    if "rows" in signature(generate).parameters:
        with suppress(DecoderError):  # a loop may say that it goes on with no other image
            ways[f"on {ROWS} rows that are refilled"] = run.generate(rows=ROWS).codes
    return ways


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
