"""The verdict on one decoder, from a handful of checks on small random models.

Sampling: (1) the law of the committed code at every node, enumerated over all draws of its
children, and at every depth where the rule depends on it; what the rule said while the decoder ran,
against lemma R; (2) p_A against its definition; (3) p of every visited node in every row and step
of long images against teacher forcing; (4) the own drafter: q a function of prefix and path, drafts
drawn from it; (5) the same of many codes, in the model's dtype (`own`); (6) the law of whole
images, enumerated (`deep`); (7) sampled images against the enumerated AR law, where (6) was not
followed to the end.
A verifier of whole drafts has no (1) and (2). A rule that declares a bound does not follow the AR
law, so the others then run its loop, drafter and tree with the exact rule in its place: the loop
must be right, and (1) and (2) say what the rule does. Greedy: `bench.judge.gate.equal`. A drafter
with a checkpoint of its own has random weights there, and whole images of the real model are judged
too (`sampled.real_check`). Nothing that is not finite passes: every comparison fails on NaN.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import torch

from bench.data.errors import Failure, attempt
from bench.judge.gate.deep import deep_check, long_check, own_check, whole_check
from bench.judge.gate.equal import greedy_check, rows_check
from bench.judge.gate.laws import definition_check, law_check, lemma_check, record_nodes, relaxes
from bench.judge.gate.own import drafter_check, wide_check
from bench.judge.gate.report import Finding, GateReport, Verdict, joined, known
from bench.judge.gate.sampled import images_check, real_check
from bench.judge.gate.small import Asked, Real, checkpoints, small_spec
from decoders.api import DecoderError, Generation, ImageModel, NumericalError, Sampling
from decoders.baselines import DRAFTER, EXACT
from decoders.compose import DecoderSpec, resolve

TRIAL = (12, 3, 15)  # (V, grid, seed) on which the drafter's logits are looked at
IMAGES = 16
DIGITS = 4  # of the figure
FOLLOWED = 1e-6  # probability that an enumeration may leave out, which the detail says
LAWS = {"whole law": whole_check, "deep law": deep_check, "long law": long_check,
        "own law": own_check}  # fmt: skip
SAID = *LAWS, "", "images", "drafter", "wide", "rows"  # ""; what was not enumerated
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
    real = Real()
    if model is not None:
        real = Real(model.target.vocab_size, _native(model), model.dtype)
    asked, says, seen = Asked(spec, sampling, real), "", []
    if checkpoints(spec.drafter):
        shown = captions() if model is not None and captions is not None else None
        with _one_thread():
            asked, says = _drafting(asked, shown is not None)
        if model is not None and shown is not None:
            seen = [real_check(_as_exact(replace(asked, spec=spec)), model, shown)]
            says = joined(says, seen[0].says)
    with _one_thread():
        try:
            report = (_greedy if sampling.greedy else _sampling)(asked, seen)
        except NumericalError as error:  # a drafter that says NaN declares no distribution
            return GateReport("broken", 1.0, f"no finite law: {error}")
    if getattr(resolve(spec.loop.target), "target_changed", False):
        report = _on_another_target(report)
    if any(finding.fault for finding in seen):
        return report
    return replace(report, detail=joined(report.detail, says))


def _on_another_target(report: GateReport) -> GateReport:
    """What was found on a target like all others, of a decoder that has another one."""
    if report.verdict != "exact":
        return report
    says = "codes are another target's, which no TV is about; on a target like all others: "
    detail, nothing = says + report.detail, math.nan
    return replace(report, verdict="relaxed", figure=nothing, detail=detail, changed=True)


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


def _drafting(asked: Asked, judged: bool) -> tuple[Asked, str]:
    """The composition whose drafter drafts on small models, and what became of the drafter. One
    that cannot be built small leaves its place to another drafter, if images of the real model are
    judged; else DecoderError."""

    def decoded() -> Generation:
        made = asked.trial(TRIAL, IMAGES)
        return made.decoder.generate(made.text, made.noise)

    tried = attempt(decoded, (NumericalError,))
    if not isinstance(tried, Failure):
        return asked, "the drafter has random weights in the enumerated models"
    if not judged:
        raise DecoderError(
            f"the drafter cannot be built without its checkpoint on a small model ({tried.error}); "
            "give its class a default of None for the checkpoint, and a net that takes its sizes "
            "from the model or from the checkpoint's config.json"
        )
    says = f"the enumerated models have another drafter, as this one cannot be small: {tried.error}"
    return replace(asked, spec=replace(asked.spec, drafter=DRAFTER)), says


def _as_exact(asked: Asked) -> Asked:
    """The composition with the exact rule, whose images follow the AR law."""
    if asked.spec.acceptance is None:
        return asked
    return replace(asked, spec=replace(asked.spec, acceptance=EXACT))


def _greedy(asked: Asked, seen: list[Finding]) -> GateReport:
    found, apart, exact = greedy_check(asked)
    drafter = drafter_check(asked)
    if not _claims_law(asked):
        return _unclaimed(asked, [found, drafter], [apart, *seen])
    findings = [found, apart, *seen, drafter]
    if exact:
        return _report(asked, "exact", "tokens equal greedy AR on all prompts", findings)
    says = (
        f"every accepted draft is the largest entry of p_A, and moved at most {found.figure:.4f}, "
        f"within its bound of {found.evidence['bound']:.4f}"
    )
    return _report(asked, "relaxed", says, findings)


def _sampling(asked: Asked, seen: list[Finding]) -> GateReport:
    """The cheap and the exact checks first; images are drawn where none of them found a fault."""
    law: list[Finding] = []
    tested, recorded = asked, None
    if _by_rule(asked.spec):
        recorded = record_nodes(asked)
        law = [law_check(asked, recorded)]
        if law[0].fault:
            return _report(asked, "broken", "", [*law, *seen])
        tested = _as_exact(asked) if relaxes(law[0].evidence) else asked
    laws = [check(tested) for check in LAWS.values()]
    if not _claims_law(asked):
        return _unclaimed(asked, law, [*laws, *seen])
    rows = rows_check(tested)
    if recorded is not None:
        law += [definition_check(asked)]
        law += [lemma_check(asked, recorded)] if recorded.judged else []
    drafter = drafter_check(tested, _followed(laws))
    found = [*law, rows, drafter, wide_check(tested), *laws, *seen]
    followed = _followed(found)
    if not any(finding.fault for finding in found) and (asked.real.native or not followed):
        found.append(images_check(tested, followed))  # a kernel's numbers cannot be followed
    return _concluded(asked, found)


def _claims_law(asked: Asked) -> bool:
    """See `decoders.api.Decoder`; of the decoder on a small model."""
    return asked.trial(TRIAL, 1).decoder.claims_law


def _unclaimed(asked: Asked, findings: list[Finding], apart: list[Finding]) -> GateReport:
    """A loop that claims no law is `relaxed`. apart: checks against AR, whose faults only say how
    far its law is away; a fault of `findings` is one all the same."""
    law = [_law_words(f.evidence) for f in findings if f.name == "node law"]
    says = joined("the loop claims nothing of its codes' law", *law, *(f.fault for f in apart))
    return _report(asked, "relaxed", says, [*findings, *(replace(f, fault="") for f in apart)])


def _by_rule(spec: DecoderSpec) -> bool:
    """Whether drafts are judged node by node, by an acceptance rule; a verifier judges them
    whole."""
    return spec.acceptance is not None and not hasattr(resolve(spec.acceptance.target), "decide")


def _complete(finding: Finding) -> bool:
    return float(finding.evidence.get("not followed", 1.0)) < FOLLOWED


def _followed(findings: list[Finding]) -> bool:
    """Was the law followed to the end, of whole images and at the decoder's depth, and is it that
    of all images, as drafts hang on nothing that the contract forbids?"""
    laws = [f for f in findings if f.name in ("whole law", "deep law")]
    return all(map(_complete, laws)) and not _forbidden(findings)


def _forbidden(findings: list[Finding]) -> list[str]:
    return [f.evidence["forbidden"] for f in findings if "forbidden" in f.evidence]


def _concluded(asked: Asked, findings: list[Finding]) -> GateReport:
    evidence = {f.name: f.evidence for f in findings}
    law, says = evidence.get("node law"), _loop_words(findings)
    if law is not None and relaxes(law):
        return _report(asked, "relaxed", joined(_law_words(law), says), findings)
    if law is not None:
        says += f"; {law['nodes']} enumerated nodes of the rule"
    if forbidden := _forbidden(findings):
        says = f"not shown exact: {forbidden[0]}; {says}"
    sampled = {} if _followed(findings) else evidence.get("images", {})
    return _report(asked, "exact", says, findings, sampled.get("resolution", 0.0))


def _loop_words(findings: list[Finding]) -> str:
    """What was followed, with what in the place of what and up to which size, and what was only
    sampled."""
    says = {f.name: f.says for f in findings}
    laws = [f.evidence for f in findings if f.name in LAWS]
    refused = [law["not enumerated"] for law in laws if "not enumerated" in law][:1]
    says[""] = joined(*(f"not enumerated: {reason}" for reason in refused))
    return joined("images follow the AR law", *(says.get(name, "") for name in SAID))


def _law_words(law: dict[str, Any]) -> str:
    """How far a relaxed rule is away, at enumerated nodes of small random models."""
    at, beyond = law["worst"], law["beyond"]
    says = (
        f"output TV up to {at['tv']:.4f} at {law['nodes']} enumerated nodes of small random models "
        f"(after {at['children']} children), within sum (q a - p)+, lemma R's output bound, at all"
    )
    if law["own bound"]:
        return says + "; the rule declares that bound and computes it itself: it cannot exceed it"
    says += "; what the rule declares is on TV(p, p_A), not on the output"
    if not beyond:
        return says + f" ({at['bound']:.4f} there, which no node exceeds)"
    return f"{says}, and exceeded ({beyond['tv']:.4f} where {beyond['bound']:.4f} is declared)"


def _report(
    asked: Asked, verdict: Verdict, detail: str, findings: list[Finding], sampled: float = 0.0
) -> GateReport:
    """`verdict` and `detail`, unless a finding has a fault."""
    if faults := [f.fault for f in findings if f.fault]:
        forbidden = [] if asked.sampling.greedy else _forbidden(findings)
        verdict, detail, sampled = "broken", joined(*faults, *forbidden), 0.0
    figure = min(1.0, max(known(f.figure) for f in findings))
    rule, model = asked.spec.acceptance, asked.plain.model((64, 2, 0))
    small = small_spec(asked.spec, model, asked.real).acceptance
    k = None if small is None else small.kwargs.get("k")
    if k is not None and rule is not None and k != rule.kwargs.get("k"):
        detail += f" (k relative to the codebook: {k} of 64)"
    evidence = {f.name: f.evidence for f in findings if f.evidence}
    detail = f"at {_named(asked.sampling)}: {detail}"
    return GateReport(verdict, round(figure, DIGITS), detail, evidence, sampled)


def _named(sampling: Sampling) -> str:
    """The setting that a verdict belongs to."""
    filters = f", top-k {sampling.top_k}" * bool(sampling.top_k)
    filters += f", top-p {sampling.top_p:g}" * (sampling.top_p < 1)
    return f"temperature {sampling.temperature:g}, guidance {sampling.cfg:g}{filters}"
