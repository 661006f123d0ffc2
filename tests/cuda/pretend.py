"""A decoder's step on a CUDA device that is not there, on tensors of no memory.
`tests.cuda.lowered` compiles it to machine code.
"""

from __future__ import annotations

import types
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import asdict, dataclass, replace
from typing import Any
from unittest import mock

import torch
from torch import nn

from decoders.api import ImageModel, Sampling
from decoders.cache import KVCache, round_up
from decoders.compose import DecoderSpec, build_decoder
from decoders.execution.compiled import CUDA_OPTIONS, PrefillPiece, on_own_code
from decoders.execution.state import tensor_slots
from decoders.models.loading.checkpoint import assign, empty
from decoders.models.nets.attention import attending
from decoders.models.nets.eagle import EagleNet
from decoders.models.nets.transformer import Transformer, TransformerConfig
from decoders.models.pictures import NoTokenizer
from decoders.models.random_weights import OFFICIAL_SHAPES, RandomText
from decoders.noise import OVERRUN, SLOTS, Noise
from decoders.tiny.bundle import PART_CLASSES, TARGETS

CUDA = torch.device("cuda")
(XL, LATENT), DTYPE = OFFICIAL_SHAPES["llamagen_xl_256"], torch.bfloat16


@dataclass(frozen=True)
class Card:
    """A GPU, as far as a compiler asks: compute capability 10 major + minor, multiprocessors, bytes
    of shared memory that one program may have, threads of a multiprocessor."""

    name: str
    cc: int
    processors: int
    shared: int
    threads: int


CARDS = {
    card.cc: card
    for card in (
        Card("A100", 80, 108, 166912, 2048),
        Card("L40S", 89, 142, 101376, 1536),
        Card("H100", 90, 132, 232448, 2048),
        Card("RTX PRO 6000", 120, 188, 101376, 1536),
    )
}
HOPPER = CARDS[90]


@contextmanager
def fake(attention: str = "efficient") -> Iterator[None]:
    """Tensors made inside have no memory. attention: see `attending`."""
    from torch._subclasses import FakeTensorMode

    fakes = FakeTensorMode(allow_non_fake_inputs=True)
    with torch.no_grad(), fakes, attending(attention, XL.head_dim):
        yield


def fake_model(layers: int = 1) -> ImageModel:
    """LlamaGen-XL with so many layers, on a CUDA device that is not there."""
    config = replace(XL, layers=layers)
    target = _filled(Transformer, config)
    others = {}
    for name, given in TARGETS.items():
        kind, shape = PART_CLASSES[name]
        few = {"start": layers} if name == "flash" else {}  # one layer has no third
        others[name] = _filled(kind, shape(**asdict(config) | given | few))
    return ImageModel(
        name="fake",
        target=target,
        text=RandomText(config, CUDA, DTYPE),
        tokenizer=NoTokenizer("none", torch.empty(config.vocab, LATENT, device=CUDA)),
        sampling=Sampling(cfg=7.5, top_k=min(1000, config.vocab)),
        device=CUDA,
        dtype=DTYPE,
        weights_sha256={},
        drafters={"eagle": _filled(EagleNet, replace(config, layers=1))},
        targets=others,
    )


def _filled(kind: Callable[[TransformerConfig], nn.Module], config: Any) -> Any:
    module = empty(kind, config)
    for name, parameter in list(module.named_parameters()):
        assign(module, name, torch.empty(parameter.shape, dtype=DTYPE, device=CUDA))
    for name, table in list(module.named_buffers()):
        setattr(module, name, table.to(CUDA))
    return module


def step(
    model: ImageModel, spec: DecoderSpec, sampling: Sampling, backend: Callable[..., Any]
) -> list[Any]:
    """The prefill and the pieces of one step of a decoder at batch 1, each lowered by what
    `backend` makes of the shapes of a layer's part of the run's caches."""
    loop: Any = build_decoder(model, spec, sampling)
    text, key = model.text.encode(["a"]), torch.empty(1, 2, dtype=torch.long, device=CUDA)
    noise = Noise(torch.empty(1, model.target.length + OVERRUN, SLOTS, device=CUDA), key)
    state = loop.begin(text, noise, *([0] if loop.proposer is not None else []))
    carries: list[tuple[Any, ...]] = [()]
    for _, piece in loop.pieces():
        carries.append(piece(state, *carries[-1]))
    data = [x.data for _, (x, _), _ in tensor_slots(state) if isinstance(x, KVCache)]
    layers = {tuple(x.shape[1:]) for x in data}  # [2, R, H, S, d]
    caches = layers | {(2, rows * heads * slots, d) for _, rows, heads, slots, d in layers}
    target, copies = loop.model.target, sampling.guidance_rows
    small = target.new_cache(copies, round_up(target.prefix))
    calls = [(PrefillPiece(target, copies).hidden, (text, small))]
    steps = zip(loop.pieces(), carries[:-1], strict=True)
    calls += [(piece, (state, *carry)) for (_, piece), carry in steps]
    backends = []  # behind an eager step, as in a captured one: what is chosen once is chosen
    for piece, given in calls:
        torch._dynamo.reset()
        backends.append(backend(caches))
        torch.compile(on_own_code(piece), fullgraph=True, dynamic=False, backend=backends[-1])(
            *given
        )
    torch._dynamo.reset()
    return backends


# ---- the card ----------------------------------------------------------------------------------


def pretend(stack: ExitStack, card: Card = HOPPER) -> None:
    """What Inductor asks of a device that is not there."""
    import torch._inductor.config as config
    from torch._dynamo.device_interface import CudaInterface
    from torch._inductor.runtime.hints import DeviceProperties
    from torch._inductor.select_algorithm import AlgorithmSelectorCache
    from torch.utils._triton import has_triton

    major, minor = divmod(card.cc, 10)
    limits = {
        "major": major,
        "multi_processor_count": card.processors,
        "regs_per_multiprocessor": 65536,
        "max_threads_per_multi_processor": card.threads,
        "max_threads_per_block": 1024,
        "warp_size": 32,
    }
    properties = DeviceProperties(type="cuda", index=0, cc=card.cc, **limits)
    device = types.SimpleNamespace(
        name=card.name, minor=minor, total_memory=80 << 30, shared_memory_per_block=49152,
        shared_memory_per_block_optin=card.shared, L2_cache_size=50 << 20, gcnArchName="", **limits,
    )  # fmt: skip
    # PyTorch asks once for a Triton that runs, and remembers the answer of the machine at hand.
    has_triton.cache_clear()
    stack.callback(has_triton.cache_clear)
    answers: dict[str, Callable[..., Any]] = {
        "is_available": lambda: True,
        "device_count": lambda: 1,
        "current_device": lambda: 0,
        "get_device_capability": lambda *_: (major, minor),
        "get_device_properties": lambda *_: device,
    }
    for name, answer in answers.items():
        stack.enter_context(mock.patch(f"torch.cuda.{name}", answer))
    create = classmethod(lambda *_: properties)
    stack.enter_context(mock.patch.object(DeviceProperties, "create", create))
    given = staticmethod(lambda *_: device)
    stack.enter_context(mock.patch.object(CudaInterface, "get_device_properties", given))
    stack.enter_context(config.patch(compile_threads=1, pattern_matcher=False, **CUDA_OPTIONS))
    stack.enter_context(mock.patch.object(AlgorithmSelectorCache, "__call__", _chosen()))


def _chosen() -> Callable[..., Any]:
    """Takes Triton's product where Inductor would measure several: a library's is not compiled."""
    from torch._inductor.select_algorithm import AlgorithmSelectorCache, TritonTemplateCaller

    select = AlgorithmSelectorCache.__call__

    def chosen(self: Any, name: str, choices: list[Any], *args: Any, **options: Any) -> Any:
        triton = [choice for choice in choices if isinstance(choice, TritonTemplateCaller)]
        return select(self, name, (triton or choices)[:1], *args, **options)

    return chosen
