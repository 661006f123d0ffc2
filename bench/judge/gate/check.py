"""The verdict on one decoder, from a handful of checks on small random models.

Sampling: (1) the law of the committed code at every node, enumerated over all draws of its
children, and at every depth where the rule depends on it; p_A against its definition; whether the
loop uses the rule's acceptance; (2) the law of whole images, enumerated (`whole_law`); (3) p of
every visited node in long images against teacher forcing (`teacher`); (4) sampled codes and drafts,
with many codes, and of small images that cannot be enumerated (`sampled`).
A verifier of whole drafts has no (1). A rule that declares a bound does not follow the AR law, so
(2) to (4) then run its loop, drafter and tree with the exact rule in its place: the loop must be
right, and (1) says what the rule does. Greedy: `teacher.greedy_check`. A drafter with a checkpoint
of its own has random weights there, and whole images of the real model are judged too. Nothing
passes that is not finite: every comparison fails on NaN.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace

import torch

from bench.data.errors import Failure, attempt
from bench.judge.gate.laws import definition_check, law_check, loop_check, record_nodes, relaxes
from bench.judge.gate.report import CheckResult, GateReport, Verdict, finite_or_inf, joined
from bench.judge.gate.sampled import images_check, real_check, wide_check
from bench.judge.gate.small import GateCase, RealModel, checkpoints
from bench.judge.gate.teacher import greedy_check, rows_check
from bench.judge.gate.whole_law import law_checks
from decoders.api import DecoderError, Generation, ImageModel, NumericalError, Sampling
from decoders.baselines import DRAFTER, EXACT
from decoders.compose import DecoderSpec, resolve

TRIAL, IMAGES = (12, 3, 15), 16  # (V, grid, seed) and images of a first decoding
DIGITS = 4  # of the figure
ENUMERATED = 1e-6  # probability that an enumeration may leave out
Captions = Callable[[], Sequence[str]]


def check_decoder(
    spec: DecoderSpec,
    sampling: Sampling,
    model: ImageModel | None = None,
    captions: Captions | None = None,
) -> GateReport:
    """Builds the composition of `spec` on small random models and judges it under `sampling`.

    model: the real one, of whose codebook (1024 codes without a model) k and top-k keep their
    share. captions: prompts of it; a drafter with a checkpoint is then also judged by images of
    that model. Takes seconds, and the time of those images. Raises DecoderError if the composition
    cannot be built.
    """
    real = RealModel() if model is None else RealModel(model.target.vocab_size, model.dtype)
    case, note, results = GateCase(spec, sampling, real), "", list[CheckResult]()
    if checkpoints(spec.drafter):
        texts = captions() if model is not None and captions is not None else None
        with _one_thread():
            case, note = _with_small_drafter(case, texts is not None)
        if model is not None and texts is not None:
            results = [real_check(_with_exact_rule(replace(case, spec=spec)), model, texts)]
            note = joined(note, results[0].summary)
    with _one_thread():
        try:
            report = (_greedy if sampling.greedy else _sampling)(case, results)
        except NumericalError as error:  # a drafter that returns NaN declares no distribution
            return GateReport("broken", 1.0, f"no finite law: {error}")
    if report.verdict == "exact" and getattr(resolve(spec.loop.target), "target_changed", False):
        prefix = "codes are another target's, which no TV is about; on a target like all others: "
        detail = prefix + report.detail
        report = replace(report, verdict="relaxed", figure=math.nan, detail=detail, changed=True)
    if any(result.fault for result in results):
        return report
    return replace(report, detail=joined(report.detail, note))


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


def _with_small_drafter(case: GateCase, real_images: bool) -> tuple[GateCase, str]:
    """The composition whose drafter drafts on small models, and a note on the drafter. One that
    cannot be built small is replaced, if images of the real model are judged; else DecoderError."""

    def decoded() -> Generation:
        run = case.trial(TRIAL, IMAGES)
        return run.decoder.generate(run.text, run.noise)

    result = attempt(decoded, (NumericalError,))
    if not isinstance(result, Failure):
        return case, "the drafter has random weights in the enumerated models"
    if not real_images:
        raise DecoderError(
            "the drafter cannot be built without its checkpoint on a small model "
            f"({result.error}); give its class a default of None for the checkpoint, and a net "
            "that takes its sizes from the model or from the checkpoint's config.json"
        )
    note = f"the enumerated models have another drafter, as this one fits none: {result.error}"
    return replace(case, spec=replace(case.spec, drafter=DRAFTER)), note


def _with_exact_rule(case: GateCase) -> GateCase:
    """The composition with the exact rule, whose images follow the AR law."""
    if case.spec.acceptance is None:
        return case
    return replace(case, spec=replace(case.spec, acceptance=EXACT))


def _greedy(case: GateCase, real: list[CheckResult]) -> GateReport:
    result, codes, exact = greedy_check(case)
    if not _claims_law(case):
        return _unclaimed(case, [result], [codes, *real])
    results = [result, codes, *real]
    if exact:
        return _report(case, "exact", "tokens equal greedy AR on all prompts", results)
    detail = (
        f"every accepted draft is the largest entry of p_A, and moved at most {result.tv:.4f}, "
        f"within its bound of {result.evidence['bound']:.4f}"
    )
    return _report(case, "relaxed", detail, results)


def _sampling(case: GateCase, real: list[CheckResult]) -> GateReport:
    """The cheap and the exact checks first; images are drawn if none of them finds a fault."""
    rule, tested = list[CheckResult](), case
    if _by_rule(case.spec):
        nodes = record_nodes(case)
        rule = [law_check(case, nodes)]
        if rule[0].fault:
            return _report(case, "broken", "", [*rule, *real])
        tested = _with_exact_rule(case) if relaxes(rule[0].evidence) else case
        rule += [definition_check(case), loop_check(case, nodes)]
    laws = law_checks(tested)
    if not _claims_law(case):
        return _unclaimed(case, rule[:1], [*laws, *real])
    results = [*rule, rows_check(tested), wide_check(tested), *laws, *real]
    complete = all(law.evidence.get("not followed", 1.0) < ENUMERATED for law in laws[:2])
    if not complete and not any(result.fault for result in results):
        results.append(images_check(tested))
    detail, resolution = _images_words(results), 0.0
    if rule and relaxes(rule[0].evidence):
        return _report(case, "relaxed", joined(_rule_words(rule[0]), detail), results)
    if rule:
        detail += f"; {rule[0].evidence['nodes']} enumerated nodes of the rule"
    if not complete:
        resolution = results[-1].evidence.get("resolution", 0.0)
    return _report(case, "exact", detail, results, resolution)


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


def _images_words(results: list[CheckResult]) -> str:
    """What was enumerated, compared and sampled, and why something could not be enumerated."""
    reasons = [r.evidence["not enumerated"] for r in results if "not enumerated" in r.evidence]
    refused = [f"not enumerated: {reason}" for reason in reasons[:1]]
    summaries = [result.summary for result in results if result.name != "real model"]
    return joined("images follow the AR law", *refused, *summaries)


def _rule_words(result: CheckResult) -> str:
    """How far a relaxed rule is away, at enumerated nodes of small random models."""
    evidence = result.evidence
    worst, beyond = evidence["worst"], evidence["beyond"]
    words = (
        f"output TV up to {worst.law.tv:.4f} at {evidence['nodes']} enumerated nodes of small "
        f"random models (after {worst.node.count} children), within sum (q a - p)+, lemma R's "
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
    """`verdict` and `detail`, unless a result has a fault."""
    if faults := [result.fault for result in results if result.fault]:
        verdict, detail, sampled = "broken", joined(*faults), 0.0
    figure = min(1.0, max(finite_or_inf(result.tv) for result in results))
    evidence = {result.name: result.evidence for result in results if result.evidence}
    detail = f"at {_named(case.sampling)}: {detail}"
    return GateReport(verdict, round(figure, DIGITS), detail, evidence, sampled)


def _named(sampling: Sampling) -> str:
    """The setting that a verdict belongs to."""
    filters = f", top-k {sampling.top_k}" * bool(sampling.top_k)
    filters += f", top-p {sampling.top_p:g}" * (sampling.top_p < 1)
    return f"temperature {sampling.temperature:g}, guidance {sampling.cfg:g}{filters}"
