"""A piece of a step is compiled, whoever wrote it, and decodes the same codes. Those of the
project's own decoders: `tests.decoders.execution.test_matrix`."""

from dataclasses import replace
from typing import Any

import pytest
import torch

from decoders.api import Acceptance, ImageModel, Sampling
from decoders.execution.compiled import compiles
from decoders.execution.cpu.execution import Kernel
from decoders.models.random_weights import random_model
from decoders.noise import Noise
from decoders.propose.drafters.dspark import DSpark
from decoders.propose.drafters.eagle import Eagle
from decoders.propose.trees.chain import Chain
from decoders.verify.exact import Exact
from tests.decoders.compositions import TracedKernel, drafting, images, require_same
from tests.decoders.execution.cpu.cases import needs_kernel

pytestmark = needs_kernel
SAMPLING = Sampling(cfg=2.0, top_k=40)
ONE = ["a b"]


def model_of(sizes: Any = (), kind: type[Kernel] = TracedKernel) -> ImageModel:
    """A small random model in the kernel, compiled at batches of `sizes`."""
    how = kind(sizes)
    model = how.prepare(random_model(vocab=128, grid=5, width=32))
    return replace(model, execution=how)


def require_compiled(eager: Any, compiled: Any) -> None:
    """Two generations are the same, the second with all pieces compiled."""
    require_same(eager, compiled, "accepted")
    assert {*eager.trace.path.values()} == {"eager"}
    assert {*compiled.trace.path.values()} == {"compiled"}


class Wary(Exact):
    """A rule of one's own: accepts half as often as it may."""

    def test(self, p: torch.Tensor, q: torch.Tensor | None, x: torch.Tensor) -> Acceptance:
        test = super().test(p, q, x)
        return replace(test, accept=test.accept / 2)


class Printing(Wary):
    """One that no compiler can trace."""

    def test(self, p: torch.Tensor, q: torch.Tensor | None, x: torch.Tensor) -> Acceptance:
        return super().test(p if p.data_ptr() else p * 0, q, x)


def loop_of(model: ImageModel, rule: Any = None, drafter: Any = Eagle) -> Any:
    return drafting(model, drafter(model), Chain(depth=2), rule, SAMPLING)


def test_a_plug_in_is_compiled_at_the_sizes_asked_for_and_a_cache_written(monkeypatch) -> None:
    """Without guards: torch.compile takes their filter out of the options it is given. The block
    drafter's cache is written as the compiler can follow: where two views of one cache are written,
    Inductor gives weights to the wrong places."""
    filters, real = [], torch.compile
    assert compiles(torch.device("cpu"))  # once, before the filters are looked at

    def noting(function: Any, *, options: dict[str, Any], **more: Any) -> Any:
        filters.append(options.get("guard_filter_fn"))
        return real(function, options=options, **more)

    monkeypatch.setattr(torch, "compile", noting)
    loop, plain = (
        loop_of(model_of(*given), Wary(), DSpark) for given in ((range(1, 2), Kernel), ())
    )
    wanted = images(plain, ONE)
    require_compiled(wanted, images(loop, ONE))
    two = images(loop, [*ONE, "c"])
    assert two.trace.path["accept"] == "eager" and torch.equal(two.codes[:1], wanted.codes)
    assert len(filters) >= 2 and set(filters) == {torch.compiler.skip_all_guards_unsafe}


def test_state_of_another_form_never_meets_the_code_of_the_first() -> None:
    """There are no guards: a longer table of noise is a state that nothing was compiled for."""
    loop, plain = (loop_of(model_of(sizes), Wary()) for sizes in (range(1, 2), ()))
    text, keys = loop.model.text.encode(["a b"]), torch.tensor([[5, 7]])
    for more in (0, 40, 0):
        noise = Noise.of_keys(keys, loop.model.target.length + more)
        assert torch.equal(loop.generate(text, noise).codes, plain.generate(text, noise).codes)
    assert [len(graphs) for graphs in loop.prepared[1].values()] == [1] * 6


def test_what_cannot_be_traced_runs_as_it_is_and_says_so(
    caplog: pytest.LogCaptureFixture,
) -> None:
    loop = loop_of(model_of(range(1, 2)), Printing())
    wanted = images(loop_of(model_of(), Printing()), ONE)
    for _ in range(2):
        generation = images(loop, ONE)
        require_same(generation, wanted)
        assert generation.trace.path["accept"] == "eager"
    assert caplog.text.count("'accept' runs operator by operator") == 1
