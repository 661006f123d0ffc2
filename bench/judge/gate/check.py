"""The verdict on one decoder, from a handful of checks on small random models.

At any temperature an image's codes are its own, whatever is decoded with it (`batches`). At
temperature 0 they are AR's, or those that the rule asks for (`greedy`). Else: (1) the law of the
committed code at every node of a rule, enumerated; p_A against its definition; whether the loop
uses the rule's acceptance (`laws`); (2) the law of images, enumerated (`whole_law`); (3) sampled
codes and drafts, with many codes, and of small images that cannot be enumerated (`sampled`). A
verifier of whole drafts has no (1). A rule that declares a bound does not follow the AR law, so (2)
and (3) then run its loop, drafter and tree with the exact rule in its place: the loop must be
right, and (1) says what the rule does. Nothing passes that is not finite: every comparison fails on
NaN.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace

import torch

from bench.data.errors import Failure, attempt
from bench.judge.gate.batches import batches_check
from bench.judge.gate.greedy import greedy_check
from bench.judge.gate.laws import definition_check, loop_check, node_law_check, relaxes, visited
from bench.judge.gate.report import CheckResult, GateReport, Verdict, finite_or_inf, joined
from bench.judge.gate.sampled import images_check, wide_check
from bench.judge.gate.small import GateCase, checkpoints
from bench.judge.gate.whole_law import enumeration_checks
from decoders.api import DecoderError, Generation, ImageModel, NumericalError, Sampling
from decoders.baselines import EXACT
from decoders.compose import DecoderSpec, resolve

TRIAL, IMAGES = (12, 3, 15), 16  # (V, grid, seed) and images of a first decoding
DIGITS = 4  # of the figure
ENUMERATED = 1e-6  # probability that an enumeration may leave out


def check_decoder(
    spec: DecoderSpec, sampling: Sampling, model: ImageModel | None = None
) -> GateReport:
    """Builds the composition of `spec` on small random models and judges it under `sampling`.

    model: the real one, of whose codebook (1024 codes without a model) k and top-k keep their
    share. Takes seconds. Raises DecoderError if the composition cannot be built.
    """
    case = GateCase(spec, sampling)
    if model is not None:
        case = replace(case, codebook=model.target.vocab_size, dtype=model.dtype)
    with _one_thread():
        if checkpoints(spec.drafter):
            _require_small_drafter(case)
        try:
            report = (_greedy if sampling.greedy else _sampling)(case)
        except NumericalError as error:  # a drafter that returns NaN declares no distribution
            return GateReport("broken", 1.0, f"no finite law: {error}")
    if report.verdict == "exact" and getattr(resolve(spec.loop.target), "target_changed", False):
        prefix = "codes are another target's, which no TV is about; on a target like all others: "
        detail = prefix + report.detail
        report = replace(report, verdict="relaxed", figure=math.nan, detail=detail, changed=True)
    return report


@contextmanager
def _one_thread() -> Iterator[None]:
    """The gate's tensors are small: a second thread gains nothing, and where another process holds
    its core, waiting for it makes every operation many times slower."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(threads)


def _require_small_drafter(case: GateCase) -> None:
    """Raises DecoderError for a drafter with a checkpoint that cannot be built without it."""

    def decoded() -> Generation:
        run = case.trial(TRIAL, IMAGES)
        return run.decoder.generate(run.text, run.noise)

    result = attempt(decoded, (NumericalError,))
    if isinstance(result, Failure):
        raise DecoderError(
            "the drafter cannot be built without its checkpoint on a small model "
            f"({result.error}); give its class a default of None for the checkpoint, and a net "
            "that takes its sizes from the model or from the checkpoint's config.json"
        )


def _with_exact_rule(case: GateCase) -> GateCase:
    """The composition with the exact rule, whose images follow the AR law."""
    if case.spec.acceptance is None:
        return case
    return replace(case, spec=replace(case.spec, acceptance=EXACT))


def _greedy(case: GateCase) -> GateReport:
    result, codes, exact = greedy_check(case)
    loop = [result, batches_check(case)]
    if not _claims_law(case):
        return _unclaimed(case, loop, [codes])
    if exact:
        return _report(case, "exact", "tokens equal greedy AR on all prompts", [*loop, codes])
    detail = (
        f"every accepted draft is the largest entry of p_A, and moved at most {result.tv:.4f}, "
        f"within its bound of {result.evidence['bound']:.4f}"
    )
    return _report(case, "relaxed", detail, [*loop, codes])


def _sampling(case: GateCase) -> GateReport:
    """The cheap and the exact checks first; images are drawn if none of them finds a fault."""
    rule, tested, relaxed = list[CheckResult](), case, ""
    if _by_rule(case.spec):
        trace = visited(case)
        rule = [node_law_check(case, trace)]
        if rule[0].fault:
            return _report(case, "broken", "", rule)
        if relaxes(rule[0].evidence):
            tested, relaxed = _with_exact_rule(case), _rule_words(rule[0])
        rule += [definition_check(case), loop_check(case, trace)]
    batches = batches_check(case)
    laws = [] if "not enumerated" in batches.evidence else enumeration_checks(tested)
    if not _claims_law(case):
        return _unclaimed(case, [*rule[:1], batches], laws)
    results = [*rule, batches, wide_check(tested), *laws]
    unfollowed = [law.evidence.get("not followed", 1.0) for law in laws]
    resolution = 0.0
    if max(unfollowed, default=1.0) >= ENUMERATED and not any(one.fault for one in results):
        results.append(images_check(tested))
        resolution = results[-1].evidence["resolution"]
    if relaxed:
        detail = f"{relaxed}; with the exact rule images follow the AR law"
        return _report(case, "relaxed", detail, results)
    return _report(case, "exact", "images follow the AR law", results, resolution)


def _claims_law(case: GateCase) -> bool:
    """See `decoders.api.Decoder`."""
    return case.trial(TRIAL, 1).decoder.claims_law


def _unclaimed(case: GateCase, loop: list[CheckResult], ar: list[CheckResult]) -> GateReport:
    """A loop that claims no law is `relaxed`. ar: comparisons with AR, whose faults only measure
    its distance; a fault of `loop` makes it broken all the same."""
    words = [_rule_words(result) for result in loop if result.name == "node law"]
    faults = [result.fault for result in ar]
    detail = joined("the loop claims nothing of its codes' law", *words, *faults)
    return _report(case, "relaxed", detail, [*loop, *(replace(result, fault="") for result in ar)])


def _by_rule(spec: DecoderSpec) -> bool:
    """Whether an acceptance rule judges drafts node by node; a verifier judges them whole."""
    return spec.acceptance is not None and not hasattr(resolve(spec.acceptance.target), "verify")


def _rule_words(result: CheckResult) -> str:
    """How far a relaxed rule is away, at enumerated nodes of small random models."""
    evidence = result.evidence
    worst, beyond = evidence["worst"], evidence["beyond"]
    words = (
        f"output TV up to {worst.law.tv:.4f} at {evidence['nodes']} enumerated nodes of small "
        f"random models (after {worst.node.siblings} children), within sum (q a - p)+, lemma R's "
        "output bound, at all"
    )
    if evidence["bounds output"]:
        return words + "; the rule declares that bound and computes it itself: it cannot exceed it"
    words += "; what the rule declares is on TV(p, p_A), not on the output"
    if beyond is None:
        return f"{words} ({worst.law.declared:.4f} there, which no node exceeds)"
    return (
        f"{words}, and exceeded ({beyond.law.tv:.4f} where {beyond.law.declared:.4f} is declared)"
    )


def _report(
    case: GateCase, verdict: Verdict, detail: str, results: list[CheckResult], sampled: float = 0.0
) -> GateReport:
    """`verdict` and `detail`, unless a result has a fault; with what was looked at."""
    if faults := [result.fault for result in results if result.fault]:
        verdict, detail, sampled = "broken", joined(*faults), 0.0
    reasons = [r.evidence["not enumerated"] for r in results if "not enumerated" in r.evidence]
    detail = joined(detail, *(f"not enumerated: {reason}" for reason in reasons[:1]))
    summaries = [result.summary for result in results if result.summary]
    looked = ", ".join(summaries + ["its drafter untrained"] * bool(checkpoints(case.spec.drafter)))
    figure = min(1.0, max(finite_or_inf(result.tv) for result in results))
    evidence = {result.name: result.evidence for result in results if result.evidence}
    detail = f"at {_named(case.sampling)}: {joined(detail, f'looked at: {looked}')}"
    return GateReport(verdict, round(figure, DIGITS), detail, evidence, sampled)


def _named(sampling: Sampling) -> str:
    """The setting that a verdict belongs to."""
    filters = f", top-k {sampling.top_k}" * bool(sampling.top_k)
    filters += f", top-p {sampling.top_p:g}" * (sampling.top_p < 1)
    return f"temperature {sampling.temperature:g}, guidance {sampling.cfg:g}{filters}"
