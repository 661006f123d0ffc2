"""The verdict on one decoder, from a handful of checks on small float32 models.

Sampling: (1) the law of the committed code at every node, enumerated over all draws of its
children, and at every depth where the rule depends on it; what the rule said while the decoder ran,
against lemma R; (2) p_A against its definition; (3) images equal to AR's, code by code, with
bit-exact acceptance under shared noise; (4) the law of whole images, enumerated on a table model;
(5) whole images of the real decoder against the enumerated AR law; (6) calibration on longer
images. A verifier of whole drafts has no (1) and (2). A rule that declares a bound does not follow
the AR law, so (4) to (6) then run its loop, drafter and tree with the exact rule in its place: the
loop must be right, and (1) and (2) say what the rule does. Greedy: `bench.judge.gate.greedy`. A
drafter with a checkpoint of its own has random weights there, and whole images of the real model
are judged too (`bench.judge.gate.real`). Nothing that is not finite passes: every comparison fails
on NaN.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import torch

from bench.judge.gate.drafters import checkpoints, finite_check
from bench.judge.gate.equal import equality_check
from bench.judge.gate.greedy import greedy_check
from bench.judge.gate.laws import definition_check, law_check
from bench.judge.gate.lemma import lemma_check
from bench.judge.gate.real import real_check
from bench.judge.gate.report import Finding, GateReport, Verdict, known
from bench.judge.gate.sampled import (
    Recorded,
    calibration_check,
    images_check,
    record_nodes,
    recording_rule,
)
from bench.judge.gate.small import (
    Real,
    build_small,
    drafter_names,
    fresh_noise,
    prompts,
    small_model,
    small_spec,
)
from bench.judge.gate.whole_law import whole_check
from bench.run.outcome import Failure, attempt
from decoders.api import (
    Decoder,
    DecoderError,
    ImageModel,
    NumericalError,
    Sampling,
    TextFeatures,
)
from decoders.compose import DecoderSpec, PartSpec, resolve
from decoders.noise import Noise

EXACT = PartSpec("decoders.verify.exact.Exact")
STAND_IN = PartSpec("decoders.propose.drafters.eagle.Eagle")
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
    check = _greedy if sampling.greedy else _sampling
    small, says, seen = spec, "", []
    if checkpoints(spec.drafter):
        with _one_thread():
            judged = model is not None and captions is not None
            small, says = _drafting(spec, sampling, real, judged)
        if model is not None and captions is not None:
            seen = [real_check(_as_exact(spec), sampling, model, captions())]
            says += f"; {seen[0].evidence['images']} images of the real model follow its AR law"
    with _one_thread():
        try:
            report = check(small, sampling, real, seen)
        except NumericalError as error:  # a drafter that says NaN declares no distribution
            return GateReport("violates", 1.0, f"no finite law: {error}", {})
    if not says or any(finding.fault for finding in seen):
        return report
    return replace(report, detail=f"{report.detail}; {says}")


def _drafting(
    spec: DecoderSpec, sampling: Sampling, real: Real, judged: bool
) -> tuple[DecoderSpec, str]:
    """The composition whose drafter drafts on small models, and what became of the drafter. One
    that cannot be built small leaves its place to another drafter, if images of the real model are
    judged; else DecoderError."""
    trial = attempt(lambda: _trial(spec, sampling, real), (NumericalError,))
    if not isinstance(trial, Failure):
        return spec, "the drafter has random weights in the enumerated models"
    if not judged:
        raise DecoderError(
            f"the drafter cannot be built without its checkpoint on a small model ({trial.error}); "
            "give its class a default of None for the checkpoint, and a net that takes its sizes "
            "from the model or from the checkpoint's config.json"
        )
    says = f"the enumerated models have another drafter, as this one cannot be small: {trial.error}"
    return replace(spec, drafter=STAND_IN), says


def _as_exact(spec: DecoderSpec) -> DecoderSpec:
    """The composition with the exact rule, whose images follow the AR law."""
    return spec if spec.acceptance is None else replace(spec, acceptance=EXACT)


def _trial(
    spec: DecoderSpec, sampling: Sampling, real: Real
) -> tuple[Decoder, TextFeatures, Noise]:
    """The composition on a small model, where it has decoded a few images, and what it decodes."""
    vocab, grid, seed = TRIAL
    model = small_model(vocab, grid, seed, drafter_names(spec), native=real.native)
    noise = fresh_noise(IMAGES, grid * grid, torch.Generator().manual_seed(seed))
    decoder, text = build_small(spec, sampling, model, real), prompts(model, IMAGES, seed)
    decoder.generate(text, noise)
    return decoder, text, noise


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


def _greedy(spec: DecoderSpec, sampling: Sampling, real: Real, seen: list[Finding]) -> GateReport:
    found, exact = greedy_check(spec, sampling, real)
    findings = [found, *seen, finite_check(*_trial(spec, sampling, real))]
    fault = "; ".join(f.fault for f in findings if f.fault)
    verdict: Verdict = "violates" if fault else "exact" if exact else "bounded"
    says = {
        "exact": "tokens equal greedy AR on all prompts",
        "bounded": f"every accepted draft is the largest entry of p_A, and moved at most "
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
    others = []
    if law is not None:
        others = [definition_check(spec, real)]
    if recorded.judged:
        others.append(lemma_check(recording_rule(spec, real), recorded.judged, recorded.levels))
    others += [
        equality_check(spec, sampling, real),
        whole_check(tested, sampling, real),
        images_check(tested, sampling, real, Recorded()),
        calibration_check(tested, sampling, real),
        *seen,
        finite_check(*_trial(spec, sampling, real)),
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
    faults = [f.fault for f in findings if f.fault]
    figure = min(1.0, max(known(f.figure) for f in findings))
    verdict: Verdict = "violates"
    if not faults:
        verdict = "exact" if law is None or law.evidence["max_bound"] == 0 else "bounded"
    says = "; ".join(faults) or "images follow the AR law"
    if not faults and (followed := _followed(others)):
        says += f" ({followed})"
    if law is not None and not faults:
        says += (
            f"; {_summary(law)}" if verdict == "exact" else f" with the exact rule; {_summary(law)}"
        )
    return _report(verdict, figure, says, findings, spec, real)


def _followed(findings: list[Finding]) -> str:
    """How far the law of whole images was enumerated; nothing where it was not."""
    for evidence in (f.evidence.get("whole law", {}) for f in findings):
        if evidence.get("not followed") == 0:
            return f"to 1e-9, over all {evidence['ways']} ways to a small one"
    return ""


def _summary(law: Finding) -> str:
    """What the enumerated nodes show of a rule that keeps its bound."""
    nodes = law.evidence["nodes"]
    if law.evidence["max_bound"] == 0:
        return f"{nodes} enumerated nodes"
    at = law.evidence["worst"]
    return (
        f"output TV within the declared bound at all {nodes} enumerated nodes, the largest after "
        f"{at['children']} children (bound {at['bound']:.4f}); after a single one at most "
        f"{law.evidence['max_tv_of_one_child']:.4f}; {law.evidence['holds']} (the other one is the "
        f"output bound, sum (q a - p)+: {at['output_bound']:.4f} there)"
    )


def _report(
    verdict: Verdict,
    figure: float,
    detail: str,
    findings: list[Finding],
    spec: DecoderSpec,
    real: Real,
) -> GateReport:
    evidence: dict[str, Any] = {f.name: f.evidence for f in findings if f.evidence}
    before = None if spec.acceptance is None else spec.acceptance.kwargs
    small = small_spec(spec, small_model(64, 2, 0, drafter_names(spec)), real).acceptance
    if small is not None and small.kwargs != before:
        detail += f" (k relative to the codebook: {small.kwargs['k']} of 64)"
    holds = evidence.get("node law", {}).get("holds", "")
    return GateReport(verdict, round(figure, DIGITS), detail, evidence, holds)
