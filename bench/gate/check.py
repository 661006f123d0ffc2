"""The exactness verdict on one decoder, from a handful of checks on small random models.

At any temperature an image's codes do not depend on what is decoded with it (`batches`). At
temperature 0 they are AR's, or those that the rule allows (`greedy`). At others: the law of the
committed code at every node of a rule (`laws`; none of a verifier, which judges drafts whole), the
law of images, enumerated (`whole_law`), and sampled codes and drafts, of images with many codes and
of small ones that cannot be enumerated (`sampled`).

A rule that declares a bound does not follow the AR law. So images are then decoded with the exact
rule in its place: the loop must be right, and `laws` says what the rule does. Nothing passes that
is not finite, because every comparison fails on NaN.
"""

from __future__ import annotations

import math
from dataclasses import replace
from functools import partial
from typing import Any, NamedTuple

import torch
from torch import Tensor

from bench.errors import Failure, attempt
from bench.gate.batches import batches_check
from bench.gate.greedy import greedy_check
from bench.gate.laws import definition_check, node_law_check
from bench.gate.long_images import (
    ROWS,
    SAMPLED_ROWS,
    LongImages,
    numbers_check,
    recorded_bound_check,
    verified_law_check,
)
from bench.gate.result import Check, finite_or_inf
from bench.gate.sampled import AHEAD, SMALL, images_check, wide_check
from bench.gate.small import GateCase, GateSizes, RealModel, checkpoints
from bench.gate.whole_law import enumeration_checks
from bench.store.facts import Verdict, Word
from decoders.api import Decoder, DecoderError, Draft, NumericalError, Prefill, Sampling
from decoders.checks import AnswerError, class_path, misplaced
from decoders.compose import DecoderSpec, is_synthetic
from decoders.execution.cpu.library import missing
from decoders.propose.tree_proposer import TreeSession
from decoders.spec import EXACT_RULE

FIRST = (12, 3, 15)  # (V, grid, seed) of the first images
SYNTHETIC = "Drafts are accepted at stated rates: its times count, and nothing else."
PROBABILITIES = (
    ". Warning: the drafter's logits are never negative and sum to 1, as probabilities do; return "
    "their logarithm, or q is nearly flat and few drafts are accepted"
)
# Checks whose faults are causes, the likeliest first; those of sampled images follow.
CAUSES = ("node law", "definition", "loop", "batches", "verified law")
ENUMERATED = 1e-6  # probability that an enumeration may leave out
AS_PROBABILITIES = 1e-3  # logits of one sign whose sums are so near to 1 are probabilities


def check_decoder(
    spec: DecoderSpec,
    sampling: Sampling,
    real: RealModel | None = None,
    sizes: GateSizes | None = None,
) -> Verdict:
    """Builds the composition of `spec` on small random models and judges it under `sampling`.

    real: what the small ones take from the run's model; without it 1024 codes in bfloat16, by the
    CPU kernel where it can be built. sizes: how much is looked at. Takes seconds. Raises
    DecoderError if the composition cannot be built.
    """
    if is_synthetic(spec):
        return Verdict("synthetic", SYNTHETIC)
    real = real or RealModel(kernel=missing() is None)
    case = GateCase(spec, sampling, real, sizes or GateSizes())
    threads = torch.get_num_threads()
    # A second thread gains small tensors nothing, and waiting for a core that is busy takes long.
    torch.set_num_threads(1)
    try:
        # A drafter with a checkpoint may fail for the want of it.
        passing = (NumericalError,) if checkpoints(spec.drafter) else (Exception,)
        look = attempt(partial(first_look, case), passing)
        if isinstance(look, Failure):
            raise DecoderError(
                "the drafter cannot be built without its checkpoint on a small model "
                f"({look.error}); give its class a default of None for the checkpoint, and a net "
                "that takes its sizes from the model or from the checkpoint's config.json"
            )
        if look.fault:
            return Verdict("broken", look.fault, 1.0)
        verdict = (_greedy if sampling.greedy else _sampling)(case, look)
    except NumericalError as error:  # a drafter that returns NaN declares no distribution
        return Verdict("broken", f"no finite law: {error}", 1.0)
    finally:
        torch.set_num_threads(threads)
    if verdict.word != "exact" or not look.decoder.target_changed:
        return verdict
    detail = f"Codes are another target's, to which no TV applies. {verdict.detail}"
    return replace(verdict, word="relaxed", figure=math.nan, detail=detail, changed=True)


def check_rule(spec: DecoderSpec, sampling: Sampling, real: RealModel) -> Verdict:
    """Judges the acceptance rule of a composition alone, at enumerated nodes, in seconds."""
    if is_synthetic(spec):
        return Verdict("synthetic", SYNTHETIC)
    case = GateCase(spec, sampling, real)
    if sampling.greedy or not case.has_rule:
        detail = "no rule that judges draws one by one; it is checked without --fast"
        return Verdict("no rule", detail)
    rule = node_law_check(case, LongImages.of(case).done.trace)
    statement = rule.relaxation or "the rule follows p"
    statement += ". Loop, drafter and images were not looked at"
    checks = [rule, definition_check(case)]
    verdict = _verdict(case, _word(rule.relaxation), statement, checks)
    alone: dict[Word, Word] = {"exact": "exact rule", "relaxed": "relaxed rule"}
    return replace(verdict, word=alone.get(verdict.word, verdict.word))


def _greedy(case: GateCase, look: FirstLook) -> Verdict:
    result, codes = greedy_check(case)
    loop = [result, batches_check(case)]
    if not look.decoder.claims_law:
        return _unclaimed(case, "", loop, [codes])
    if result.bound is None:
        return _verdict(case, "exact", "codes equal greedy AR", [*loop, codes])
    statement = "every accepted draft is the largest entry of p_A, with a TV shift of at most "
    statement += f"{result.tv:.4f}, within its bound of {result.bound:.4f}"
    return _verdict(case, "relaxed", statement, [*loop, codes])


def _sampling(case: GateCase, look: FirstLook) -> Verdict:
    """The cheap and the exact checks first; images are drawn if none of them finds a fault."""
    rule, relaxation = list[Check](), ""
    ar_case = case  # the composition whose images must follow AR's law
    images = LongImages.of(case)
    if case.has_rule:
        rule = [node_law_check(case, images.done.trace)]
        if rule[0].fault:
            return _verdict(case, "broken", "", rule)
        if relaxation := rule[0].relaxation:
            ar_case = replace(case, spec=replace(case.spec, acceptance=EXACT_RULE))
        rule += [definition_check(case), recorded_bound_check(images)]
    batches = batches_check(case)
    laws = [] if batches.not_enumerated else enumeration_checks(ar_case)
    if not look.decoder.claims_law:
        return _unclaimed(case, relaxation, [*rule[:1], batches], laws)
    verified, ar_images = verified_law_check(images), images
    if relaxation or batches.not_enumerated:
        ar_images = LongImages.of(ar_case, SAMPLED_ROWS if batches.not_enumerated else ROWS)
    checks = [*rule, verified, batches, numbers_check(ar_images), wide_check(ar_case), *laws]
    unfollowed = {law.name: law.unfollowed for law in laws}
    unfollowed.pop("guided law", None)  # and the next: what they find comes on top
    looks = [("long images", AHEAD, 8)] * (unfollowed.pop("long law", None) is not None)
    looks += [("images", SMALL, 1)] * (max(unfollowed.values(), default=1.0) >= ENUMERATED)
    for sizes in looks:
        if not any(check.fault for check in checks):
            checks.append(images_check(ar_case, *sizes))
    statement = f"images follow the AR law{PROBABILITIES * look.probabilities}"
    if relaxation:
        statement = f"{relaxation}. With the exact rule {statement}"
    return _verdict(case, _word(relaxation), statement, checks)


class FirstLook(NamedTuple):
    """What a decoder's first images show. decoder: as it is built; fault: which of its drafts has
    children that break their contract, "" for none; probabilities: whether the drafter returns
    them in place of logits, which is exact but drafts badly."""

    decoder: Decoder
    fault: str
    probabilities: bool


def first_look(case: GateCase) -> FirstLook:
    """Decodes two small images, and watches drafts and logits."""
    run, faults, steps = case.trial(FIRST, 2), list[str](), list[Tensor]()  # steps: logits [B, V]
    proposer: Any = run.decoder.proposer
    begin: Any = None if proposer is None else proposer.begin

    def watched(prefill: Prefill) -> Any:
        session: Any = begin(prefill)
        propose = session.propose

        def checked(*given: Any) -> Draft:
            draft: Draft = propose(*given)
            if fault := misplaced(draft):
                part = class_path(proposer.tree or proposer)
                faults.append(f"{part} breaks the contract of `decoders.api.Draft`: {fault}")
                raise AnswerError(faults[0])
            return draft

        session.propose = checked
        if isinstance(session, TreeSession):
            advance = session.advance

            def noted(output: Any) -> Tensor:
                steps.append(advance(output))
                return steps[-1]

            session.advance = noted  # type: ignore[method-assign]
        return session

    if proposer is not None:
        proposer.begin = watched
    try:
        run.generate()
    except AnswerError:
        if not faults:
            raise
    sums = [torch.where(logits < 0, torch.inf, logits).sum(-1) for logits in steps]
    normal = [bool(((one - 1).abs() < AS_PROBABILITIES).all()) for one in sums]
    return FirstLook(run.decoder, "".join(faults), bool(normal) and all(normal))


def _word(relaxation: str) -> Word:
    return "relaxed" if relaxation else "exact"


def _unclaimed(case: GateCase, relaxation: str, loop: list[Check], ar: list[Check]) -> Verdict:
    """A loop that claims no law is `relaxed`. ar: comparisons with AR, whose faults only measure
    its distance; a fault of `loop` makes it broken all the same."""
    faults = [check.fault for check in ar]
    statement = _sentences("the loop claims nothing of its codes' law", relaxation, *faults)
    return _verdict(case, "relaxed", statement, [*loop, *(replace(one, fault="") for one in ar)])


def _verdict(case: GateCase, word: Word, statement: str, checks: list[Check]) -> Verdict:
    """`word` and `statement`, unless a check has a fault; with what was checked, and the setting
    that it belongs to."""
    if faults := [check.fault for check in sorted(checks, key=_rank_of_cause) if check.fault]:
        word, statement = "broken", _sentences(*faults)
    reasons = [check.not_enumerated for check in checks if check.not_enumerated]
    summaries = [check.summary for check in checks if check.summary]
    summaries += ["its drafter untrained"] * bool(checkpoints(case.spec.drafter))
    sampling = case.sampling
    setting = f"temperature {sampling.temperature:g}, guidance {sampling.cfg:g}"
    setting += f", top-k {sampling.top_k}" * bool(sampling.top_k)
    setting += f", top-p {sampling.top_p:g}" * (sampling.top_p < 1)
    unknown = [f"Not enumerated: {reason}" for reason in reasons[:1]]
    checked = f"Checked: {', '.join(summaries)}."
    detail = _sentences(f"At {setting}: {statement}", *unknown, checked)
    figure = round(min(1.0, max(finite_or_inf(check.tv) for check in checks)), 4)
    sampled = sum(check.resolution for check in checks if check.name == "images")
    length = SMALL[1] ** 2 if sampled else 0
    return Verdict(
        word, detail, figure, sampled=sampled, sampled_length=length, checks=tuple(checks)
    )


def _rank_of_cause(check: Check) -> int:
    """Sorts what explains the other faults to the front; drafts that are not of q have a TV."""
    drafts = check.name == "wide" and check.tv > 0
    return CAUSES.index(check.name) if check.name in CAUSES else len(CAUSES) + 1 - drafts


def _sentences(*parts: str) -> str:
    """The parts that are not empty, with full stops between them."""
    return ". ".join(filter(None, parts))
