"""What drafters with a class of their own share: how they are built and trained, their weights, and
how a session keeps B images as R rows.

Weights are the model's, by name, or in a folder that a learner's `save` wrote.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from decoders.api import DecoderError, Drafter, DraftSession, ImageModel, Sampling, TextFeatures
from decoders.cache import KVCache, Reads, aligned
from decoders.distribution import code_logits, take
from decoders.masks import CLOSED, added
from decoders.models.checkpoint import assign
from decoders.models.weights import load_into, read_tensors, write_weights
from decoders.training.states import States, transformer_of

WEIGHTS = "model.safetensors"
# Of nets whose layers are no operators of the CPU kernel (their matrices are): compiled, what is
# between them rounds to half precision elsewhere than it does alone, and drafts would be others.
FLOAT = torch.float32


# ---- sessions -----------------------------------------------------------------------------------


class Session(DraftSession):
    """Drafts for B images, kept as R rows (conditional, then unconditional). kept: the target's
    cache, of a drafter that reads it."""

    def __init__(
        self,
        net: Any,
        model: ImageModel,
        text: TextFeatures,
        prefix_hidden: Tensor,
        sampling: Sampling,
        max_new: int,
        nodes: int,
        kept: KVCache | None = None,
    ) -> None:
        self.net, self.target, self.cfg = net, model.target, sampling.cfg
        self.copies, self.max_new, self.kept = sampling.guidance_rows, max_new, kept
        self.root_code = torch.zeros(text.batch, dtype=torch.long, device=prefix_hidden.device)
        self.allocate(prefix_hidden, nodes)
        self._read(text, prefix_hidden)

    def allocate(self, like: Tensor, nodes: int) -> None:
        """Makes what is kept of the images, on the device of `like` [R, P, D]."""

    def _read(self, text: TextFeatures, prefix_hidden: Tensor) -> None:
        """Reads the images' prefix."""
        self.calls = 0

    def _rows(self, values: Tensor) -> Tensor:
        """[B, ...] -> [R, ...]."""
        return values if self.copies == 1 else torch.cat([values] * self.copies)

    def root(self, codes: Tensor, count: Tensor) -> Tensor:
        """Keeps the last committed code; returns which of the codes it is, [B, 1]."""
        last = count[:, None] - 1
        self.root_code.copy_(codes.gather(1, last)[:, 0])
        return last


class DepthSession(Session):
    """A session whose node's law follows from its depth: `advance` fills ``laws`` [B, n, V], the
    guided logits of all n depths behind the root."""

    depths: ClassVar[int]  # n

    def allocate(self, like: Tensor, nodes: int) -> None:
        batch, device = len(self.root_code), like.device
        self.laws = torch.zeros(batch, self.depths, self.target.vocab_size, device=device)
        size = max(self.target.length + self.max_new, self.depths)
        self.span = torch.arange(aligned(size), device=device)  # room for places

    def expand(self, codes: Tensor, nodes: Tensor, parents: Tensor, depth: int) -> Tensor:
        del nodes, parents
        most = self.laws.shape[1]
        if depth >= most:
            raise DecoderError(
                f"the tree is deeper than the {most} places that the drafter foresees; set "
                f"tree.depth to at most {most}"
            )
        return self.laws[:, depth, None].expand(-1, codes.shape[1], -1)  # [B, w, V]


class CachedSession(Session):
    """A session with a key/value cache of its own. Node i writes i slots behind the root; its row
    of the attention mask is its parent's with one more visible slot."""

    start: int  # the slot of an image's first code
    features: Tensor | None = None  # [R, nodes + 1, D], what was predicted at every node, if read

    def allocate(self, like: Tensor, nodes: int) -> None:
        rows, device = len(like), like.device
        capacity = aligned(self.start + self.target.length + self.max_new + nodes + 1)
        self.cache = self._new_cache(rows, capacity)
        self.places = torch.arange(capacity, device=device)  # [S]
        self.prefix = torch.full((rows, 1, capacity), CLOSED, device=device)  # a mask [R, 1, S]
        self.seen = torch.full((rows, nodes + 1, capacity), CLOSED, device=device)
        self.root_slot = torch.zeros(rows, 1, dtype=torch.long, device=device)

    def _new_cache(self, rows: int, capacity: int) -> KVCache:
        raise NotImplementedError("a session with a cache says how it is made")

    def _forward(
        self,
        codes: Tensor,
        features: Any,
        slots: Tensor,
        places: Tensor,
        seen: Tensor,
        wanted: Tensor | None = None,
    ) -> Tensor:
        """codes, slots [R, T]; places [R, T], slots by depth; features [R, T, D] of the places
        above; seen, a mask [R, T, S]; wanted [R, W]: of which queries the result is read, all
        without it -> [R, W or T, D], what the head reads."""
        raise NotImplementedError("a session says what its net does")

    def _visible(self, slots: Tensor) -> Tensor:
        """What committed codes at slots [R, T] see: the image's codes so far, and the prefix; a
        mask [R, T, S]."""
        image = (self.places >= self.start) & (self.places <= slots[..., None])
        return torch.maximum(added(image), self.prefix)

    def advance(self, hidden: Tensor, codes: Tensor, count: Tensor, start: Tensor) -> Tensor:
        slots = self._rows((self.start + start)[:, None] + self.places[: codes.shape[1]])  # [R, T]
        seen = self._visible(slots)
        last = self.root(codes, count)  # [B, 1]
        self.root_slot.copy_(self._rows((self.start + start)[:, None] + last))
        last = self._rows(last)  # [R, 1]
        out = self._forward(self._rows(codes), hidden, slots, slots, seen, last)
        self.seen[:, :1] = take(seen, last)
        if self.features is not None:  # what the head reads then, too: no launch for a copy of it
            self.features[:, :1] = out
            out = self.features[:, :1]
        return self._logits(out, 0)[:, 0]

    def expand(self, codes: Tensor, nodes: Tensor, parents: Tensor, depth: int) -> Tensor:
        codes, parents = self._rows(codes), self._rows(parents)  # [R, w]
        slots = self.root_slot + nodes  # [R, w]
        places = (self.root_slot + depth).expand_as(slots)  # by depth, not by slot
        itself = added(self.places == slots[..., None])
        seen = torch.maximum(take(self.seen, parents), itself)  # [R, w, S]
        above = None if self.features is None else take(self.features, parents)
        out = self._forward(codes, above, slots, places, seen)
        self.seen.index_copy_(1, nodes, seen)
        if self.features is not None:
            self.features.index_copy_(1, nodes, out)
        return self._logits(out, depth)

    def _logits(self, hidden: Tensor, depth: int) -> Tensor:
        """Guided logits [B, w, V] of the codes after nodes of one depth; hidden [R, w, D]."""
        batch = len(self.root_code)
        places = self.root_slot[:batch] - self.start + depth + 1  # [B, 1]
        return code_logits(self.target, hidden, self.cfg, places.expand(-1, hidden.shape[1]))


# ---- parts --------------------------------------------------------------------------------------


class NetDrafter(Drafter):
    """A drafter whose sessions are of one class."""

    opens: ClassVar[type[Session]]
    model: ImageModel

    def __str__(self) -> str:
        return type(self).__name__.lower()

    def begin(
        self,
        text: TextFeatures,
        prefix_hidden: Tensor,
        sampling: Sampling,
        max_new: int,
        nodes: int,
        kept: KVCache | None = None,
    ) -> Any:
        given = text, prefix_hidden, sampling, max_new, nodes, kept
        return self.opens(self.net, self.model, *given)


class Trained(NetDrafter):
    """checkpoint: a name of the model's drafters, or a folder that `bench train` wrote; None:
    untrained. made: a model -> an untrained net for its target, float32; dtype: what it is used in,
    None: the model's."""

    made: Any
    dtype: ClassVar[torch.dtype | None] = FLOAT

    def __init__(self, model: ImageModel, checkpoint: str | None = None) -> None:
        self.net, self.model = trained(model, checkpoint, self.made, self.dtype), model
        check_match(self.net, model.target)


class NetLearner:
    """Trains the net of a drafter (`decoders.training.states.Learner`); checkpoint: one to go on
    from, and made: as of `Trained`."""

    made: Any
    net: Any

    def __init__(self, model: ImageModel, checkpoint: str | None = None) -> None:
        self.target = transformer_of(model)
        self.start = self.target.prefix - 1
        net = self.made(model) if checkpoint is None else self.filled(model, checkpoint)
        self.net = net.to(model.device).float()

    @property
    def reads(self) -> Reads:
        """What of the target's cache the net is trained with."""
        return ()

    def filled(self, model: ImageModel, checkpoint: str) -> Any:
        """A net with the weights of a checkpoint."""
        net = self.made(model)
        fill(net, model, checkpoint)
        return net

    def read(self, states: States, noise: Tensor | None) -> Tensor:
        """What the net is given of the target at every place, [R, P + L - 1, D]."""
        return states.hidden.float() if noise is None else states.hidden + noise

    def save(self, folder: Path) -> str:
        """Writes what `trained` reads of a folder; returns the file's SHA-256."""
        return write_weights(self.net, folder / WEIGHTS)


def check_match(net: Any, target: Any) -> None:
    """Drafter and target must agree on width, vocabulary, image length and prefix, and a drafter
    that reads padded places needs a target in which their states are defined (`Target.prefill`)."""
    pairs = {
        "width": (net.cfg.width, target.width),
        "vocab": (net.cfg.vocab, target.vocab_size),
        "length": (net.cfg.length, target.length),
        "prefix": (net.cfg.prefix, target.prefix),
    }
    wrong = [f"{name}: drafter {a}, target {b}" for name, (a, b) in pairs.items() if a != b]
    if wrong:
        raise DecoderError(
            "drafter and target do not fit: "
            + "; ".join(wrong)
            + ". Train a drafter for this target, or pick the one it was made for"
        )
    if net.cfg.pads == "released" and target.cfg is not None and target.cfg.pads == "masked":
        raise DecoderError(
            'drafter and target do not fit: the drafter (pads="released") reads the states of '
            'padded prefix places, which mean something in a target with pads="released" alone '
            '(METHODS 6), found a target with pads="masked". Pick the drafter that was made for '
            "this target, or, if it never saw padded places in training, set "
            '"lantern_bench": {"pads": "masked"} in its config.json'
        )


# ---- weights ------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Stored:
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
    found = None if checkpoint is None else model.drafters.get(checkpoint)
    with torch.random.fork_rng(devices=[]):  # what is untrained is the same every time
        torch.manual_seed(0)
        net = build(model)
    if isinstance(found, type(net)):
        return found
    if checkpoint is not None:
        fill(net, model, checkpoint)
    for name, value in list(net.named_parameters()):
        assign(net, name, value.detach().to(model.device, dtype or model.dtype))
    for module in net.modules():  # tables keep their types: places, bars, rotations
        for name, table in list(module.named_buffers(recurse=False)):
            setattr(module, name, table.to(model.device))
    net = net.eval().requires_grad_(False)
    if isinstance(found, Stored):
        model.drafters[str(checkpoint)] = net
        model.weights_sha256[str(checkpoint)] = found.sha256
    return net


def fill(net: nn.Module, model: ImageModel, checkpoint: str) -> None:
    """Loads the weights of a checkpoint, as `trained`, into a net. Raises DecoderError."""
    found = model.drafters.get(checkpoint)
    if isinstance(found, nn.Module):
        net.load_state_dict({name: value.float() for name, value in found.state_dict().items()})
        return
    path, sha256 = Path(checkpoint) / WEIGHTS, None
    if isinstance(found, Stored):
        path, sha256 = found.path, found.sha256
    elif not path.exists():
        raise DecoderError(
            f"model {model.name!r} has no drafter {checkpoint!r}; it has: "
            f"{', '.join(model.drafters) or 'none'}. Train it (`bench train drafter=...`) "
            f"and set drafter.checkpoint to the folder that was written: expected {path}"
        )
    load_into(net, read_tensors(path, sha256), str(path))
