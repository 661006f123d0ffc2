"""The verdict on one decoder, from a handful of checks on small float32 models.

Sampling: (1) the law of the committed code at every node, enumerated over all draws of its
children, and at every depth where the rule depends on it; what the rule said while the decoder ran,
against lemma R; (2) p_A against its definition; (3) images equal to AR's, code by code, with
bit-exact acceptance under shared noise; (4) the law of whole images, enumerated on a table model;
(5) whole images of the decoder against the enumerated AR law; (6) calibration on longer images. A
verifier of whole drafts has no (1) and (2). A rule that declares a bound does not follow the AR
law, so (4) to (6) then run its loop, drafter and tree with the exact rule in its place: the loop
must be right, and (1) and (2) say what the rule does. Greedy: `bench.judge.gate.equal`. A drafter
with a checkpoint of its own has random weights there, and whole images of the real model are judged
too (`sampled.real_check`). Nothing that is not finite passes: every comparison fails on NaN.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from bench.data.errors import Failure, attempt
from bench.judge.gate.equal import equality_check, greedy_check
from bench.judge.gate.laws import Recorded, definition_check, law_check, lemma_check
from bench.judge.gate.report import Finding, GateReport, Verdict, known
from bench.judge.gate.sampled import calibration_check, images_check, real_check, record_nodes
from bench.judge.gate.small import Real, checkpoints, small_for, small_spec, trial
from bench.judge.gate.whole_law import whole_check
from decoders.api import DecoderError, Generation, ImageModel, NumericalError, Sampling
from decoders.baselines import DRAFTER, EXACT
from decoders.compose import DecoderSpec, resolve
from decoders.distribution import probabilities

TRIAL = (12, 3, 15)  # (V, grid, seed) on which the drafter's logits are looked at
IMAGES = 16
DIGITS = 4  # of the figure
Captions = Callable[[], Sequence[str]]


def check_decoder(
    spec: DecoderSpec,
    sampling: Sampling,
    model: ImageModel | None = None,
    captions: Captions | None = None,
) -> GateReport:
    """Rebuilds the composition of `spec` on small random models and judges it under `sampling`.

    model: the real one, of which two things are taken over: the codebook's size, of which the
    rule's k and the sampling's top-k keep their share (1024 codes without a model), and whether it
    runs in the CPU kernel. captions: prompts of the real model; where they are given, a drafter
    with a checkpoint of its own is also judged by whole images of that model. Takes seconds, and
    the time of those images. Raises DecoderError if the composition cannot be built.
    """
    real = Real() if model is None else Real(model.target.vocab_size, _native(model))
    small, says, seen = spec, "", []
    if checkpoints(spec.drafter):
        shown = captions() if model is not None and captions is not None else None
        with _one_thread():
            small, says = _drafting(spec, sampling, real, shown is not None)
        if model is not None and shown is not None:
            seen = [real_check(_as_exact(spec), sampling, model, shown)]
            says += f"; {seen[0].evidence['images']} images of the real model follow its AR law"
    with _one_thread():
        try:
            report = (_greedy if sampling.greedy else _sampling)(small, sampling, real, seen)
        except NumericalError as error:  # a drafter that says NaN declares no distribution
            return GateReport("broken", 1.0, f"no finite law: {error}", {})
    if not says or any(finding.fault for finding in seen):
        return report
    return replace(report, detail=f"{report.detail}; {says}")


def _native(model: ImageModel) -> bool:
    native = getattr(model.execution, "native", None)
    return native is not None and native(model.target) is not None


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


def _drafting(
    spec: DecoderSpec, sampling: Sampling, real: Real, judged: bool
) -> tuple[DecoderSpec, str]:
    """The composition whose drafter drafts on small models, and what became of the drafter. One
    that cannot be built small leaves its place to another drafter, if images of the real model are
    judged; else DecoderError."""
    tried = attempt(lambda: _decoded(spec, sampling, real), (NumericalError,))
    if not isinstance(tried, Failure):
        return spec, "the drafter has random weights in the enumerated models"
    if not judged:
        raise DecoderError(
            f"the drafter cannot be built without its checkpoint on a small model ({tried.error}); "
            "give its class a default of None for the checkpoint, and a net that takes its sizes "
            "from the model or from the checkpoint's config.json"
        )
    says = f"the enumerated models have another drafter, as this one cannot be small: {tried.error}"
    return replace(spec, drafter=DRAFTER), says


def _decoded(spec: DecoderSpec, sampling: Sampling, real: Real) -> Generation:
    made = trial(spec, sampling, real, TRIAL, IMAGES)
    return made.decoder.generate(made.text, made.noise)


def _as_exact(spec: DecoderSpec) -> DecoderSpec:
    """The composition with the exact rule, whose images follow the AR law."""
    return spec if spec.acceptance is None else replace(spec, acceptance=EXACT)


def finite_check(spec: DecoderSpec, sampling: Sampling, real: Real) -> Finding:
    """Are the drafter's logits numbers? A loop may well survive NaN (it accepts nothing then), but
    what such a drafter declares is no distribution."""
    made = trial(spec, sampling, real, TRIAL, IMAGES)
    drafter = getattr(made.decoder, "drafter", None)
    if drafter is None:
        return Finding("drafter", "")
    begin, finite = drafter.begin, [True]

    def noting(answer: Callable[..., Tensor]) -> Callable[..., Tensor]:
        def noted(*asked: Any) -> Tensor:
            logits = answer(*asked)
            finite.append(bool(torch.isfinite(probabilities(logits, sampling)).all()))
            return logits

        return noted

    def watched(*asked: Any) -> Any:
        session = begin(*asked)
        session.advance, session.expand = noting(session.advance), noting(session.expand)
        return session

    drafter.begin = watched
    made.decoder.generate(made.text, made.noise)
    fault = "the drafter's logits hold NaN or infinity: its q is no distribution"
    return Finding("drafter", fault * (not all(finite)))


def _greedy(spec: DecoderSpec, sampling: Sampling, real: Real, seen: list[Finding]) -> GateReport:
    found, exact = greedy_check(spec, sampling, real)
    findings = [found, *seen, finite_check(spec, sampling, real)]
    fault = "; ".join(f.fault for f in findings if f.fault)
    verdict: Verdict = "broken" if fault else "exact" if exact else "relaxed"
    says = {
        "exact": "tokens equal greedy AR on all prompts",
        "relaxed": f"every accepted draft is the largest entry of p_A, and moved at most "
        f"{found.figure:.4f}, within its bound of {found.evidence['bound']:.4f}",
    }
    return _report(verdict, found.figure, fault or says[verdict], findings, spec, real)


def _sampling(spec: DecoderSpec, sampling: Sampling, real: Real, seen: list[Finding]) -> GateReport:
    law, relaxed, recorded = None, False, Recorded()
    if _by_rule(spec):
        recorded = record_nodes(spec, sampling, real)
        law, relaxed = law_check(spec, real, recorded)
    if law is not None and law.fault and not relaxed:  # its images cannot follow the AR law
        return _sampling_report(spec, real, law, seen)
    tested = _as_exact(spec) if relaxed else spec
    others = [
        *([definition_check(spec, real)] if law is not None else []),
        *([lemma_check(spec, real, recorded)] if recorded.judged else []),
        equality_check(spec, sampling, real),
        whole_check(tested, sampling, real),
        images_check(tested, sampling, real),
        calibration_check(tested, sampling, real),
        *seen,
        finite_check(spec, sampling, real),
    ]
    return _sampling_report(spec, real, law, others)


def _by_rule(spec: DecoderSpec) -> bool:
    """Whether drafts are judged node by node, by an acceptance rule; a verifier judges them
    whole."""
    return spec.acceptance is not None and not hasattr(resolve(spec.acceptance.target), "decide")


def _sampling_report(
    spec: DecoderSpec, real: Real, law: Finding | None, others: list[Finding]
) -> GateReport:
    findings = others if law is None else [law, *others]
    figure = min(1.0, max(known(f.figure) for f in findings))
    if faults := [f.fault for f in findings if f.fault]:
        return _report("broken", figure, "; ".join(faults), findings, spec, real)
    says = "images follow the AR law"
    whole = next((f.evidence for f in others if f.name == "whole law"), {})
    if whole.get("not followed") == 0:
        says += f" (to 1e-9, over all {whole['ways']} ways to a small one)"
    if law is None:
        return _report("exact", figure, says, findings, spec, real)
    nodes, at = law.evidence["nodes"], law.evidence["worst"]
    if law.evidence["max_bound"] == 0:
        says += f"; {nodes} enumerated nodes"
        return _report("exact", figure, says, findings, spec, real)
    says += (
        f" with the exact rule; output TV within the declared bound at all {nodes} enumerated "
        f"nodes, the largest after {at['children']} children (bound {at['bound']:.4f}); after a "
        f"single one at most {law.evidence['max_tv_of_one_child']:.4f}; {law.evidence['holds']} "
        f"(the other one is the output bound, sum (q a - p)+: {at['output_bound']:.4f} there)"
    )
    return _report("relaxed", figure, says, findings, spec, real)


def _report(
    verdict: Verdict,
    figure: float,
    detail: str,
    findings: list[Finding],
    spec: DecoderSpec,
    real: Real,
) -> GateReport:
    evidence: dict[str, Any] = {f.name: f.evidence for f in findings if f.evidence}
    model = small_for(spec, (64, 2, 0), replace(real, native=False))
    small = small_spec(spec, model, real).acceptance
    k = None if small is None else small.kwargs.get("k")
    if k is not None and spec.acceptance is not None and k != spec.acceptance.kwargs.get("k"):
        detail += f" (k relative to the codebook: {k} of 64)"
    holds = evidence.get("node law", {}).get("holds", "")
    return GateReport(verdict, round(figure, DIGITS), detail, evidence, holds)
