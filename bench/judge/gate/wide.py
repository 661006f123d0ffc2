"""The first step of images of as many codes as the real model has, in its dtype: is the second code
drawn from the p that it was verified with, and are drafts drawn from the q that is declared?

This is for what shows in many codes alone: residuals that are cut, sums in half precision. All
images are of one caption, and have the same first code. So the second code of thousands of images
has one law, as has the first draft.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from bench.judge.gate.own import Draws, watched_begin
from bench.judge.gate.reference import processed, teacher_logits
from bench.judge.gate.report import Finding
from bench.judge.gate.small import Asked, fresh_noise, prompts, same_prompt
from bench.judge.gate.statistics import alarm, draw_pvalues, pearson, tested
from decoders.api import Draft, Settled

CODES, SEED, LENGTH = 1024, 16, 4  # codes at most; of images of so many places
FLAT = 0.2  # scale of the target's logits: random ones leave a few likely codes
IMAGES, NODES, BATCH = 4096, 2**15, 2**12  # images at most; nodes of their drafts; of a batch's


class SeenError(Exception):
    """The first step is over, and what comes after it is of no interest."""


class Steps:
    """The first steps of a decoder: the law p of the second code, [V] (None where it has no
    verifier), the first two codes of a batch's images [B, 2], and their drafts."""

    def __init__(self, decoder: Any, rows: int) -> None:
        self.law: Tensor | None = None
        self.images: list[Tensor] = []
        self.draws: list[Draws] = []
        self.apart = False  # whether first codes differ, as the decoder has numbers of its own
        proposer, verifier = (getattr(decoder, name, None) for name in ("proposer", "verifier"))
        if proposer is None or verifier is None:
            return
        begin, decide = proposer.begin, verifier.decide

        def beginning(start: Any) -> Any:
            self.draws.append(Draws(rows, LENGTH))
            return watched_begin(begin, None, self.draws[-1])(start)

        def deciding(law: Any, draft: Draft, *rest: Any) -> Any:
            made: Settled = decide(law, draft, *rest)
            self.law = law.p[:, 0].double().mean(0)
            drafted = draft.codes.gather(1, made.nodes[:, 1:2])[:, 0]
            second = torch.where(made.count > 0, drafted, made.last_code)
            self.images.append(torch.stack([draft.codes[:, 0], second], 1))
            raise SeenError

        proposer.begin, verifier.decide = beginning, deciding


def wide_check(asked: Asked) -> Finding:
    """Evidence: how many codes and images."""
    vocab, dtype, asked = min(asked.real.codebook, CODES), asked.real.dtype, asked.plain
    if asked.spec.acceptance is None:  # there p is that of teacher forcing
        dtype = torch.float32
    model = asked.model((vocab, 2, SEED), dtype=dtype)
    target: Any = model.target
    with torch.no_grad():
        target.output.weight.mul_(FLAT)
    decoder: Any = asked.decoder(model)
    nodes = getattr(getattr(decoder, "proposer", None), "nodes", 1)
    rows = max(64, min(1024, BATCH // nodes))
    batches = max(2 * rows, min(IMAGES, NODES // nodes)) // rows
    text = same_prompt(prompts(model, 1, SEED), rows)
    generator = torch.Generator().manual_seed(SEED)
    steps = Steps(decoder, rows)

    def sample(_: bool) -> Steps:
        steps.images, steps.draws = [], []
        for batch in range(batches):
            noise = fresh_noise(rows, LENGTH, generator)
            noise.uniform[:, 0] = 0.5
            try:
                steps.images.append(decoder.generate(text, noise).codes)
            except SeenError:
                steps.draws[batch:] = steps.draws[-1:]  # a loop may try a draft first
        return steps

    def pvalues(steps: Steps) -> list[float]:
        law = steps.law
        if law is None:
            steps.apart = len(torch.cat(steps.images)[:, 0].unique()) > 1
            if steps.apart:
                return [1.0]
            logits = teacher_logits(model, text, steps.images[0], asked.sampling.cfg)[0, 1]
            law = processed(logits, asked.filters(vocab))
        found = [pearson(law / law.sum(), torch.cat(steps.images)[:, 1])]
        first = [draws.parts[0] for draws in steps.draws if draws.parts]
        if first:
            q, x = (torch.cat(part) for part in zip(*first, strict=True))
            found += [pearson(q.mean(0), x), *draw_pvalues(steps.draws[0].parts[1:])]
        return found

    _, adjusted = tested(sample, pvalues)
    if steps.apart:
        own = "its numbers are not the noise's, so images do not begin alike"
        return Finding("wide", evidence={"not looked at": own})
    kind, images = str(dtype).removeprefix("torch."), batches * rows
    fault = alarm(
        adjusted,
        f"images of {vocab} codes in {kind}: codes are not drawn from their p, or drafts not from "
        "the q that is declared",
    )
    evidence = {"codes": vocab, "images": images, "dtype": kind, "p_value": adjusted}
    says = f"only sampled: the first step with {vocab} codes in {kind}, {images} times"
    return Finding("wide", fault, evidence, says=says)
