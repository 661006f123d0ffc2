"""The verdict on one decoder, from a handful of checks on small float32 models.

Sampling: (1) the law of the committed code at every node, enumerated over all draws of its
children; (2) p_A against its definition; (3) whole images of the real decoder against the
enumerated AR law; (4) calibration on longer images. A rule that declares a bound does not follow
the AR law, so (3) and (4) then run its loop, drafter and tree with the exact rule in its place: the
loop must be right, and (1) and (2) say what the rule does. Greedy: `bench.gate.greedy`.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import torch

from bench.gate.greedy import greedy_check
from bench.gate.laws import definition_check, law_check
from bench.gate.report import Finding, GateReport, Verdict
from bench.gate.sampled import Recorded, calibration_check, images_check, record_nodes
from bench.gate.small import Real, drafter_names, small_model, small_spec
from decoders.api import ImageModel, Sampling
from decoders.compose import DecoderSpec, PartSpec

EXACT = PartSpec("decoders.acceptance.exact.Exact")
DIGITS = 4  # of the figure


def check_decoder(
    spec: DecoderSpec, sampling: Sampling, model: ImageModel | None = None
) -> GateReport:
    """Rebuilds the composition of `spec` on small random models and judges it under `sampling`.

    model: the real one, of which two things are taken over: the codebook's size, of which the
    rule's k and the sampling's top-k keep their share (1024 codes without a model), and whether it
    runs in the CPU kernel. Takes seconds. Raises DecoderError if the composition cannot be built.
    """
    real = Real() if model is None else Real(model.target.vocab_size, _native(model))
    with _one_thread():
        return (_greedy if sampling.greedy else _sampling)(spec, sampling, real)


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


def _greedy(spec: DecoderSpec, sampling: Sampling, real: Real) -> GateReport:
    found, exact = greedy_check(spec, sampling, real)
    verdict: Verdict = "violates" if found.fault else "exact" if exact else "bounded"
    says = {
        "exact": "tokens equal greedy AR on all prompts",
        "bounded": f"every accepted draft is the largest entry of p_A, and moved at most "
        f"{found.figure:.4f}, within its bound of {found.evidence['bound']:.4f}",
    }
    detail = found.fault or says[verdict]
    return _report(verdict, found.figure, detail, [found], spec, real)


def _sampling(spec: DecoderSpec, sampling: Sampling, real: Real) -> GateReport:
    seen = Recorded()
    if spec.acceptance is None:
        images = images_check(spec, sampling, real, seen)
        return _sampling_report(spec, real, None, [images, calibration_check(spec, sampling, real)])
    law, relaxed = law_check(spec, real, record_nodes(spec, sampling, real))
    if law.fault and not relaxed:  # its images cannot follow the AR law
        return _sampling_report(spec, real, law, [])
    tested = replace(spec, acceptance=EXACT) if relaxed else spec
    others = [
        definition_check(spec, real),
        images_check(tested, sampling, real, seen),
        calibration_check(tested, sampling, real),
    ]
    return _sampling_report(spec, real, law, others)


def _sampling_report(
    spec: DecoderSpec, real: Real, law: Finding | None, others: list[Finding]
) -> GateReport:
    findings = others if law is None else [law, *others]
    faults = [f.fault for f in findings if f.fault]
    figure = max(f.figure for f in findings)
    verdict: Verdict = "violates"
    if not faults:
        verdict = "exact" if law is None or law.evidence["max_bound"] == 0 else "bounded"
    says = "; ".join(faults) or "images follow the AR law"
    if law is not None and not faults:
        says += (
            f"; {_summary(law)}" if verdict == "exact" else f" with the exact rule; {_summary(law)}"
        )
    return _report(verdict, figure, says, findings, spec, real)


def _summary(law: Finding) -> str:
    """What the enumerated nodes show of a rule that keeps its bound."""
    nodes = law.evidence["nodes"]
    if law.evidence["max_bound"] == 0:
        return f"{nodes} enumerated nodes"
    at = law.evidence["worst"]
    return (
        f"output TV within the declared bound at all {nodes} enumerated nodes, the largest after "
        f"{at['children']} children (bound {at['bound']:.4f}); after a single one at most "
        f"{law.evidence['max_tv_of_one_child']:.4f}"
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
    return GateReport(verdict, round(figure, DIGITS), detail, evidence)
