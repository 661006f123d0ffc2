"""What drafters with a class of their own share: how they are built and trained, and their weights.

Weights are the model's, by name, or in a folder that a learner's `save` wrote.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from decoders.api import DecoderError, Drafter, ImageModel, Prefill
from decoders.cache import Reads
from decoders.models.loading.checkpoint import assign
from decoders.models.loading.weights import load_into, read_state, write_tensors
from decoders.models.nets.transformer import transformer_of
from decoders.propose.drafters.common.sessions import Session
from decoders.training.states import States

WEIGHTS_FILE = "model.safetensors"
# Of nets whose layers are no operators of the CPU kernel (their matrices are): compiled, what is
# between them rounds to half precision elsewhere than it does alone, and drafts would be others.
FLOAT = torch.float32


class NetDrafter(Drafter):
    """A drafter whose sessions are of one class. most_levels: that it can draft, None: any;
    levels_setting: the one by which it drafts more. one_forward: whether one drafts all levels."""

    session: ClassVar[type[Session]]
    most_levels: int | None = None
    levels_setting = ""
    one_forward = False

    def __str__(self) -> str:
        return type(self).__name__.lower()

    def forwards(self, levels: int) -> int:
        if self.most_levels is not None and levels > self.most_levels:
            more = f", or train one for more ({self.levels_setting})" if self.levels_setting else ""
            raise DecoderError(
                f"drafter {self} drafts at most {self.most_levels} levels in a step, found "
                f"{levels}; lower tree.depth{more}"
            )
        return 1 if self.one_forward else levels

    def begin(self, prefill: Prefill, max_new: int, nodes: int) -> Session:
        return self.session(self.net, prefill, max_new, nodes)


class TrainedDrafter(NetDrafter):
    """checkpoint: a name of the model's drafters, or a folder that `bench train` wrote; None:
    untrained. untrained: a model -> a net for its target, float32; dtype: what it is used in, None:
    the model's."""

    untrained: Any
    dtype: ClassVar[torch.dtype | None] = FLOAT

    def __init__(self, model: ImageModel, checkpoint: str | None = None) -> None:
        self.net = trained(model, checkpoint, self.untrained, self.dtype)
        check_match(self.net, model.target)


class NetLearner:
    """Trains the net of a drafter (`decoders.training.states.Learner`); checkpoint: one to go on
    from, and untrained: as of `TrainedDrafter`."""

    untrained: Any
    net: Any

    def __init__(self, model: ImageModel, checkpoint: str | None = None) -> None:
        self.target = transformer_of(model)
        self.start = self.target.prefix - 1
        net = self.untrained(model) if checkpoint is None else self.load(model, checkpoint)
        self.net = net.to(model.device).float()

    @property
    def reads(self) -> Reads:
        """Which keys and values of the target's cache training gives the net."""
        return ()

    def load(self, model: ImageModel, checkpoint: str) -> Any:
        """A net with the weights of a checkpoint."""
        net = self.untrained(model)
        load_weights(net, model, checkpoint)
        return net

    def read(self, states: States) -> Tensor:
        """The target's states that the net reads, at every position, [R, P + L - 1, D]."""
        return states.hidden.float() if states.noise is None else states.hidden + states.noise

    def levels(self, states: States, roots: Tensor, depth: int) -> list[Tensor]:
        """The roots of each depth 1..depth. At depth 1, where drafts cost little, every position
        but the last; deeper the given ones."""
        every = torch.arange(states.codes.shape[1] - 1, device=roots.device)
        return [every, *[roots] * (depth - 1)]

    def save(self, folder: Path) -> str:
        """Writes what `trained` reads of a folder; returns the file's SHA-256."""
        return write_tensors(self.net.state_dict(), folder / WEIGHTS_FILE)


def check_match(net: Any, target: Any) -> None:
    """Drafter and target must agree on width, vocabulary, image length and prefix."""
    pairs = {
        "width": (net.config.width, target.width),
        "vocab": (net.config.vocab, target.vocab_size),
        "length": (net.config.length, target.length),
        "prefix": (net.config.prefix, target.prefix),
    }
    require_equal(pairs)


def require_equal(pairs: Mapping[str, tuple[Any, Any]]) -> None:
    """pairs: by name what a drafter has, and its target. Raises DecoderError where they differ."""
    wrong = [f"{name}: drafter {a}, target {b}" for name, (a, b) in pairs.items() if a != b]
    if wrong:
        raise DecoderError(
            f"drafter and target do not fit: {'; '.join(wrong)}. Train a drafter for this target, "
            "or pick the one it was made for"
        )


# ---- weights ------------------------------------------------------------------------------------


@dataclass(frozen=True)
class WeightsFile:
    """A file of weights that comes with a model (`ImageModel.drafters`)."""

    path: Path
    sha256: str


def trained(
    model: ImageModel,
    checkpoint: str | None,
    build: Callable[[ImageModel], Any],
    dtype: torch.dtype | None = None,
) -> Any:
    """The net that `build` makes for the model, frozen, on its device and in its dtype (or in
    `dtype`), with the weights of `checkpoint`: a name of the model's drafters or a folder; None: as
    it is made.

    A named net is loaded once, however many decoders use it. Raises DecoderError where there is no
    such drafter, or its weights are of another net.
    """
    named = None if checkpoint is None else model.drafters.get(checkpoint)
    with torch.random.fork_rng(devices=[]):  # what is untrained is the same every time
        torch.manual_seed(0)
        net = build(model)
    if isinstance(named, type(net)):
        return named
    if checkpoint is not None:
        load_weights(net, model, checkpoint)
    for name, value in list(net.named_parameters()):
        assign(net, name, value.detach().to(model.device, dtype or model.dtype))
    for module in net.modules():  # tables keep their types: positions, bars, rotations
        for name, table in list(module.named_buffers(recurse=False)):
            setattr(module, name, table.to(model.device))
    net = net.eval().requires_grad_(False)
    if isinstance(named, WeightsFile):
        model.drafters[str(checkpoint)] = net
        model.weights_sha256[str(checkpoint)] = named.sha256
    return net


def load_weights(net: nn.Module, model: ImageModel, checkpoint: str) -> None:
    """Loads the weights of a checkpoint, as `trained`, into a net. Raises DecoderError."""
    source = model.drafters.get(checkpoint, checkpoint)
    if isinstance(source, nn.Module):
        net.load_state_dict({name: value.float() for name, value in source.state_dict().items()})
        return
    if isinstance(source, WeightsFile):
        load_into(net, read_state(source.path, source.sha256), str(source.path))
        return
    path = Path(source) / WEIGHTS_FILE
    if not path.exists():
        then = (
            "Train it (`bench train drafter=...`) and set drafter.checkpoint to the folder that "
            f"was written: expected {path}"
        )
        raise no_drafter(model, checkpoint, then)
    load_into(net, read_state(path), str(path))


def no_drafter(model: ImageModel, name: str, then: str) -> DecoderError:
    """The error for a drafter that a model does not have; then: what to do."""
    there = ", ".join(model.drafters) or "none"
    return DecoderError(f"model {model.name!r} has no drafter {name!r}; it has: {there}. {then}")
