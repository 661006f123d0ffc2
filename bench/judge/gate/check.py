"""The verdict on one decoder, from a handful of checks on small random models.

Sampling: (1) the law of the committed code at every node, enumerated over all draws of its
children, and at every depth where the rule depends on it; what the rule said while the decoder ran,
against lemma R; (2) p_A against its definition; (3) p of every visited node in every row and step
of long images against teacher forcing; (4) the own drafter: q a function of prefix and path, drafts
drawn from it; (5) the same of many codes, in the model's dtype (`wide`); (6) the law of whole
images, enumerated (`deep`); (7) sampled images against the enumerated AR law, where (6) was not
followed to the end.
A verifier of whole drafts has no (1) and (2). A rule that declares a bound does not follow the AR
law, so the others then run its loop, drafter and tree with the exact rule in its place: the loop
must be right, and (1) and (2) say what the rule does. Greedy: `bench.judge.gate.equal`. A drafter
with a checkpoint of its own has random weights there, and whole images of the real model are judged
too (`sampled.real_check`). Nothing that is not finite passes: every comparison fails on NaN.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import torch

from bench.data.errors import Failure, attempt
from bench.judge.gate.deep import (
    CODES,
    LENGTH,
    LONG,
    VOCAB,
    deep_check,
    long_check,
    own_check,
    whole_check,
)
from bench.judge.gate.equal import greedy_check
from bench.judge.gate.laws import ROUNDING, Recorded, definition_check, law_check, lemma_check
from bench.judge.gate.own import drafter_check, rows_check
from bench.judge.gate.report import Finding, GateReport, Verdict, known
from bench.judge.gate.sampled import images_check, real_check, record_nodes
from bench.judge.gate.small import Real, checkpoints, small_for, small_spec, trial
from bench.judge.gate.whole_law import CERTAIN
from bench.judge.gate.wide import wide_check
from decoders.api import DecoderError, Generation, ImageModel, NumericalError, Sampling
from decoders.baselines import DRAFTER, EXACT
from decoders.compose import DecoderSpec, resolve

TRIAL = (12, 3, 15)  # (V, grid, seed) on which the drafter's logits are looked at
IMAGES = 16
DIGITS = 4  # of the figure
FOLLOWED = 1e-6  # probability that an enumeration may leave out, which the detail says
Captions = Callable[[], Sequence[str]]
Asked = tuple[DecoderSpec, Sampling, Real]


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
            return GateReport("broken", 1.0, f"no finite law: {error}")
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


def _greedy(spec: DecoderSpec, sampling: Sampling, real: Real, seen: list[Finding]) -> GateReport:
    found, exact = greedy_check(spec, sampling, real)
    findings = [found, *seen, drafter_check(spec, sampling, real)]
    fault = "; ".join(f.fault for f in findings if f.fault)
    verdict: Verdict = "broken" if fault else "exact" if exact else "relaxed"
    says = {
        "exact": "tokens equal greedy AR on all prompts",
        "relaxed": f"every accepted draft is the largest entry of p_A, and moved at most "
        f"{found.figure:.4f}, within its bound of {found.evidence['bound']:.4f}",
    }
    return _report(verdict, found.figure, fault or says[verdict], findings, (spec, sampling, real))


def _sampling(spec: DecoderSpec, sampling: Sampling, real: Real, seen: list[Finding]) -> GateReport:
    """The cheap and the exact checks first; images are drawn where none of them found a fault."""
    asked = spec, sampling, real
    if _truncates(spec):
        return _truncated(asked, seen)
    law, relaxed, recorded = None, False, Recorded()
    if _by_rule(spec):
        recorded = record_nodes(*asked)
        law, relaxed = law_check(spec, real, recorded)
    if law is not None and law.fault:
        return _sampling_report(asked, law, [*seen])
    tested = (_as_exact(spec) if relaxed else spec), sampling, real
    rows = rows_check(*tested)
    if untested := rows.evidence.get("untested"):
        says = (
            f"{untested:.2f} of its codes are committed untested: it claims nothing of them, and "
            "records their TV(p, q) as moved"
        )
        return _report("relaxed", known(law.figure) if law else 1.0, says, [rows], asked)
    laws = [check(*tested) for check in (whole_check, deep_check, long_check, own_check)]
    drafter = drafter_check(*tested, _followed(laws))
    found = [
        *([definition_check(spec, real)] if law is not None else []),
        *([lemma_check(spec, real, recorded)] if recorded.judged else []),
        rows,
        drafter,
        wide_check(*tested),
        *laws,
        *seen,
    ]
    followed = _followed([*laws, drafter])
    if not any(finding.fault for finding in found) and (real.native or not followed):
        found.append(images_check(*tested, followed))  # a kernel's numbers cannot be followed
    return _sampling_report(asked, law, found)


def _by_rule(spec: DecoderSpec) -> bool:
    """Whether drafts are judged node by node, by an acceptance rule; a verifier judges them
    whole."""
    return spec.acceptance is not None and not hasattr(resolve(spec.acceptance.target), "decide")


def _truncates(spec: DecoderSpec) -> bool:
    """Whether it draws no drafts, from a target that its rule cuts."""
    drafts = spec.drafter or spec.tree or spec.proposer
    if drafts is not None or spec.acceptance is None:
        return False
    return getattr(resolve(spec.acceptance.target), "truncated", None) is not None


def _truncated(asked: Asked, seen: list[Finding]) -> GateReport:
    found = whole_check(*asked, truncated=True)
    findings = [found, *seen]
    if faults := [f.fault for f in findings if f.fault]:
        return _report("broken", found.figure, "; ".join(faults), findings, asked)
    if not _complete(found):
        raise DecoderError(f"its law cannot be followed on a small model: {found.evidence}")
    says = (
        f"images follow the AR law of the target that the rule cuts (to 1e-9, over all "
        f"{found.evidence['ways']} ways to a small one); the cut law of a code is away from p by "
        f"{found.figure:.4f} at most there"
    )
    return _report("relaxed" if found.figure else "exact", found.figure, says, findings, asked)


def _complete(finding: Finding) -> bool:
    return float(finding.evidence.get("not followed", 1.0)) < FOLLOWED


def _followed(findings: list[Finding]) -> bool:
    """Was the law followed to the end, of whole images and at the decoder's depth, and is it that
    of all images, as drafts hang on nothing that the contract forbids?"""
    laws = [f for f in findings if f.name in ("whole law", "deep law")]
    return all(map(_complete, laws)) and not any(f.evidence.get("forbidden") for f in findings)


def _sampling_report(asked: Asked, law: Finding | None, others: list[Finding]) -> GateReport:
    findings = others if law is None else [law, *others]
    figure = min(1.0, max(known(f.figure) for f in findings))
    forbidden = [f.evidence["forbidden"] for f in findings if "forbidden" in f.evidence]
    if faults := [f.fault for f in findings if f.fault]:
        return _report("broken", figure, "; ".join([*faults, *forbidden]), findings, asked)
    evidence = {f.name: f.evidence for f in findings}
    says, followed = _loop_words(asked, evidence), _followed(findings)
    relaxed = law is not None and law.evidence["max_bound"] > ROUNDING
    if law is not None and relaxed:
        return _report("relaxed", figure, f"{_law_words(law.evidence)}; {says}", findings, asked)
    if law is not None:
        says += f"; {law.evidence['nodes']} enumerated nodes of the rule"
    sampled = 0.0 if followed else evidence["images"]["resolution"]
    if forbidden:
        says = f"not shown exact: {forbidden[0]}; {says}"
    return _report("exact", figure, says, findings, asked, sampled)


def _loop_words(asked: Asked, evidence: Mapping[str, Mapping[str, Any]]) -> str:
    """What was followed, with what in the place of what and up to which size, and what was only
    sampled."""
    whole, deep, long, own = (evidence[f"{name} law"] for name in ("whole", "deep", "long", "own"))
    said, wide = evidence["drafter"], evidence["wide"]
    parts, with_table = ["images follow the AR law"], ""
    if asked[0].drafter is not None:
        with_table = " with a table drafter"
    if "ways" in whole:
        parts.append(
            f"enumerated to 1e-9{with_table}: {_share(whole)} {whole['ways']} ways to an image of "
            f"{VOCAB}**{LENGTH}"
        )
    if "free" in deep:
        cut = f" (draft cut: {deep['cut']})" if "cut" in deep else ""
        parts.append(
            f"{_share(deep)} {deep['ways']} ways of the last {deep['free']} of {deep['places']} "
            f"places of {CODES} codes, where drafts have {min(deep['levels'], deep['places'])} "
            f"levels{cut}"
        )
    if "ways" in long:
        parts.append(f"{_share(long)} {long['ways']} ways of the last places of {LONG}")
    if "ways" in own and asked[0].drafter is not None:
        parts.append(f"with its own drafter, to 1e-5: {_share(own)} {own['ways']} ways to 2**4")
    parts += [f"not enumerated: {one['not enumerated']}" for one in (whole, deep, long, own)
              if "not enumerated" in one][:1]  # fmt: skip
    if "images" in evidence:
        drawn = [v["samples"] for k, v in evidence["images"].items() if k.startswith("images V")]
        parts.append(f"sampled: {sum(drawn)} small images")
    if said.get("calls compared"):
        parts.append(f"its own drafter says the same in {said['calls compared']} calls")
    if said.get("draws"):
        parts.append(f"{said['draws']} drafts are drawn from their q")
    if "images" in wide:
        parts.append(
            f"only sampled: the first step with {wide['codes']} codes in {wide['dtype']}, "
            f"{wide['images']} times"
        )
    if rows := evidence["rows"]:
        parts.append(f"{rows['rows']} rows of {LONG} codes compared over {rows['steps']} steps")
    return "; ".join(parts)


def _share(evidence: Mapping[str, Any]) -> str:
    rest = float(evidence.get("not followed", 1.0))
    return "all" if rest < CERTAIN / 10 else f"all but {rest:.1g} of the probability in"


def _law_words(law: Mapping[str, Any]) -> str:
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
    verdict: Verdict,
    figure: float,
    detail: str,
    findings: list[Finding],
    asked: Asked,
    sampled: float = 0.0,
) -> GateReport:
    spec, sampling, real = asked
    model = small_for(spec, (64, 2, 0), replace(real, native=False))
    small = small_spec(spec, model, real).acceptance
    k = None if small is None else small.kwargs.get("k")
    if k is not None and spec.acceptance is not None and k != spec.acceptance.kwargs.get("k"):
        detail += f" (k relative to the codebook: {k} of 64)"
    evidence: dict[str, Any] = {f.name: f.evidence for f in findings if f.evidence}
    detail = f"at {_named(sampling)}: {detail}"
    return GateReport(verdict, round(figure, DIGITS), detail, evidence, sampled)


def _named(sampling: Sampling) -> str:
    """The setting that a verdict belongs to."""
    filters = f", top-k {sampling.top_k}" * bool(sampling.top_k)
    filters += f", top-p {sampling.top_p:g}" * (sampling.top_p < 1)
    return f"temperature {sampling.temperature:g}, guidance {sampling.cfg:g}{filters}"
