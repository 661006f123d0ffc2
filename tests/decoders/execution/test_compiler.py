"""The compiler: where it keeps what it makes, what it can keep, and a machine without one."""

from typing import Any

import pytest
import torch
from torch._functorch._aot_autograd.autograd_cache import check_cacheable
from torch._inductor.runtime.cache_dir_utils import cache_dir
from torch._subclasses import FakeTensorMode

from decoders.execution import execution
from decoders.execution.compiled import Compiled, compiles
from decoders.execution.cuda_graphs import Graphed
from decoders.models.shape import TransformerConfig
from decoders.models.transformer import FeedForward
from tests.decoders.execution.test_backends import assert_same, codes_of

CPU = torch.device("cpu")


@pytest.mark.parametrize("mode", ["eager", "compile", "graph"])
def test_what_is_compiled_is_kept_where_the_docs_say(mode, monkeypatch, tmp_path):
    monkeypatch.delenv("TORCHINDUCTOR_CACHE_DIR", raising=False)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    execution(mode)
    assert cache_dir() == str(tmp_path / "lantern-bench" / "compiled")
    monkeypatch.setenv("TORCHINDUCTOR_CACHE_DIR", str(tmp_path / "mine"))
    execution(mode)
    assert cache_dir() == str(tmp_path / "mine")


def test_a_layer_on_a_card_is_kept_for_later_processes():
    """torch keeps no graph with an operator that it does not know to be safe."""
    seen = []

    def backend(graph: Any, inputs: Any) -> Any:
        del inputs
        check_cacheable(graph)
        seen.append(graph)
        return graph.forward

    with FakeTensorMode(), torch.device("cuda"), torch.no_grad():
        net = FeedForward(TransformerConfig(width=32, layers=1, heads=2, ffn=64))
        torch.compile(net, backend=backend, fullgraph=True)(torch.empty(2, 3, 32))
    assert len(seen) == 1


@pytest.fixture
def no_compiler(monkeypatch: pytest.MonkeyPatch) -> Any:
    def compile(*_: Any, **__: Any) -> Any:
        raise RuntimeError("Failed to find C compiler. Please specify via CC\nor so")

    monkeypatch.setattr(torch, "compile", compile)
    compiles.cache_clear()
    yield
    compiles.cache_clear()


@pytest.mark.parametrize("name", ["ar", "lantern_pp"])
def test_without_a_compiler_there_is_one_warning_and_the_codes_are_the_same(
    name, no_compiler, caplog
):
    how = Compiled()
    made, _ = codes_of(how, name, 1.0)
    assert set(made[0].trace.path.values()) == {"eager"}
    wanted, _ = codes_of(execution("eager"), name, 1.0)
    assert_same(made, wanted)
    card = torch.device("cuda")
    assert [Graphed()._compiles(device) for device in (card, card, CPU)] == [False] * 3
    warnings = [r.getMessage() for r in caplog.records if "Failed to find C" in r.getMessage()]
    assert [w.partition("work on ")[2].partition(" ")[0] for w in warnings] == ["cpu", "cuda"]
