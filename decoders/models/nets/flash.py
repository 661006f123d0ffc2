"""FlashAR's target (2605.09430), which predicts an anti-diagonal of the grid in one forward.

The *horizontal* logits of a code come from its left neighbour, through the layers, norm and head
that it shares with the original model. The *vertical* ones come from the code above it: the input
of layer `start` goes through `extra` layers, a norm and a head of their own. A gate g that sees
both predictions mixes them: g h + (1 - g) v. In the first row h stands alone, in the first column
v; the corner has both from the last position of the prefix.

A query sees the prefix and every code of its own anti-diagonal and earlier ones. Training has the
same mask and the same mixture.

A state is both halves side by side, [.., 2 D]. A half that does not exist is all zeros, which no
normed state is: so the logits are a function of the states alone.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cached_property
from typing import Annotated, Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from decoders.api import DecoderError, TextFeatures
from decoders.cache import KVCache
from decoders.kinds import Size, Within
from decoders.models.nets.grouped import Schedule
from decoders.models.nets.shape import TransformerConfig
from decoders.models.nets.transformer import Layer, Transformer

MOST_GATE_FEATURE = 6.0  # of the gate's features
LEAST_MEAN_SQUARE = 1e-6  # of their mean square


@dataclass(frozen=True)
class FlashConfig(TransformerConfig):
    """extra: vertical layers, which read the input of layer `start` (behind the last one where
    that is the number of layers). gate: width of the gate's network; 0: one number for all
    codes."""

    start: Annotated[int, Within(0, 10_000)] = 0
    extra: Size = 1
    gate: Annotated[int, Within(0, 2**16)] = 32

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.start > self.layers:
            raise DecoderError(
                f"vertical layers begin at layer {self.start} of {self.layers}; choose another "
                "start"
            )
        if self.row_end:
            raise DecoderError("anti-diagonals need a grid without row ends")


class Diagonals(Schedule):
    """The anti-diagonals of a grid, from the top row down."""

    @classmethod
    def of_grid(cls, grid: int) -> Diagonals:
        every = range(2 * grid - 1)
        rows = [range(max(0, d - grid + 1), min(d, grid - 1) + 1) for d in every]
        return cls(tuple(tuple(r * grid + d - r for r in rows[d]) for d in every))

    @cached_property
    def forwards(self) -> list[list[tuple[int, int]]]:
        """See `Schedule`; a group's own codes predict the next one."""
        return [[(i, i) for i in group] for group in self.groups[:-1]]

    def neighbours(self) -> tuple[list[list[int]], list[list[int]]]:
        """For every forward behind the prefix and each code of the next group, which query of the
        group is its left neighbour, and which is the code above it. N: there is none."""
        grid, left, above = self.wide, list[list[int]](), list[list[int]]()
        for group, later in zip(self.groups, self.groups[1:], strict=False):
            query = {position: i for i, position in enumerate(group)}
            left.append([query[n - 1] if n % grid else grid for n in later])
            above.append([query.get(n - grid, grid) for n in later])
        return left, above


class Vertical(nn.Module):
    """The branch that predicts the code below: layers, norm and head."""

    def __init__(self, config: FlashConfig) -> None:
        super().__init__()
        self.layers = nn.ModuleList(Layer(config) for _ in range(config.extra))
        self.norm = nn.RMSNorm(config.width, config.norm_eps)
        self.output = nn.Linear(config.width, config.vocab, bias=False)


class FlashTransformer(Transformer):
    """A target of anti-diagonals. Its cache has the vertical layers behind the others."""

    config: FlashConfig
    runs: Any = None  # what an execution runs in place of each of `parts`

    def __init__(self, config: FlashConfig) -> None:
        super().__init__(config)
        self.vertical = Vertical(config)
        self.vertical.apply(self._init)
        self.gate: Any = None
        self.mix: Any = None
        if config.gate:
            narrow = nn.Linear(2 * config.vocab, config.gate, bias=False)
            self.gate = nn.Sequential(narrow, nn.SiLU(), nn.Linear(config.gate, 1))
            nn.init.normal_(narrow.weight, std=1 / math.sqrt(2 * config.vocab))
            for parameter in self.gate[2].parameters():
                nn.init.zeros_(parameter)  # so that g is 1/2 at first
        else:
            self.mix = nn.Parameter(torch.zeros(1))
        self.schedule = Diagonals.of_grid(config.grid)

    def new_cache(self, rows: int, capacity: int) -> KVCache:
        config, weight = self.config, self.output.weight
        shape = config.layers + config.extra, rows, capacity, config.heads, config.head_dim
        return KVCache(*shape, weight.dtype, weight.device)

    def parts(self) -> list[Any]:
        """The layers below the branch, the rest of the original model's, and the vertical ones."""
        layers, start = self.layers, self.config.start
        return [layers[:start], layers[start:], self.vertical.layers]

    def stack(
        self, x: Tensor, positions: Tensor, slots: Tensor, mask: Tensor, cache: KVCache
    ) -> Tensor:
        """Both halves of the states, [R, T, 2 D]; see `Transformer.stack`."""
        if self.runs is None:
            return super().stack(x, positions, slots, mask, cache)
        start, size = self.config.start, self.config.layers
        below, right, down = self.runs
        where = positions, slots, mask
        if below is not None:
            x = below(x, *where, cache.part(0, start))
        horizontal = x if right is None else right(x, *where, cache.part(start, size - start))
        vertical = down(x, *where, cache.part(size, self.config.extra))
        return torch.cat([self.norm(horizontal), self.vertical.norm(vertical)], -1)

    def _run(
        self, x: Tensor, rope: Tensor, bias: Tensor, cache: Any = None, index: Any = None
    ) -> Tensor:
        """Both halves of the states, [R, T, 2 D]."""
        layers: list[Any] = [*self.layers, *self.vertical.layers]
        norms = [*(layer.attention_norm for layer in layers[1:]), self.vertical.norm]
        norms[len(self.layers) - 1] = self.norm
        branch, horizontal = x, x
        normed: Any = None
        for i, layer in enumerate(layers):
            if i == self.config.start:
                branch = x
            if i == len(self.layers):
                horizontal, x, normed = normed, branch, None
            x, normed = layer(x, rope, bias, i, cache, index, normed, norms[i])
        return torch.cat([horizontal, normed], -1)

    def logits(self, hidden: Tensor) -> Tensor:
        """[..., 2 D] -> [..., V] float32."""
        left, above = hidden.chunk(2, -1)
        h, v = self.output(left).float(), self.vertical.output(above).float()
        only_h, only_v = ((half == 0).all(-1, keepdim=True) for half in (above, left))
        g = self.mix.float().sigmoid() if self.gate is None else self._gate(h, v)
        g = torch.where(only_h, 1.0, torch.where(only_v, 0.0, g))  # [..., 1]
        return g * h + (1 - g) * v

    def _gate(self, h: Tensor, v: Tensor) -> Tensor:
        """The weight of the horizontal prediction: two predictions of the same code [..., V] ->
        [..., 1] float32."""
        z = torch.cat([h, v], -1).detach()
        z = z - z.mean(-1, keepdim=True)
        z = z / z.square().mean(-1, keepdim=True).clamp_min(LEAST_MEAN_SQUARE).sqrt()
        weight = self.gate[0].weight
        z = z.clamp(-MOST_GATE_FEATURE, MOST_GATE_FEATURE).to(weight.dtype)
        return self.gate(z).float().sigmoid()

    # ---- training -------------------------------------------------------------------------------

    def begin_as(self, original: Transformer) -> None:
        """Takes the weights of a model that predicts the next code, also for the vertical branch:
        layers from `start` on, the last one again where there are no more, norm and head."""
        self.load_state_dict(original.state_dict(), strict=False)
        layers: Any = original.layers
        for i, layer in enumerate(self.vertical.layers, self.config.start):
            layer.load_state_dict(layers[min(i, len(layers) - 1)].state_dict())
        self.vertical.norm.load_state_dict(original.norm.state_dict())
        self.vertical.output.load_state_dict(original.output.state_dict())

    def backbone(self) -> list[nn.Parameter]:
        """The parameters of the original model."""
        new = ("vertical.", "gate.", "mix")
        return [p for name, p in self.named_parameters() if not name.startswith(new)]

    def training_queries(self, codes: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        position = torch.arange(self.length - 1, device=codes.device)
        diagonal = position // self.config.grid + position % self.config.grid
        prefix = torch.arange(-self.prefix, 0, device=codes.device)
        return codes[:, :-1], position, torch.cat([prefix, diagonal])

    def forward(self, text: TextFeatures, codes: Tensor, drop: Tensor) -> Tensor:
        """The states [B, L, 2 D] that predict codes 0..L-1; see `hidden_states`."""
        hidden = self.hidden_states(text, codes, drop)[:, self.prefix - 1 :]
        left, above = hidden.chunk(2, -1)  # [B, L, D] each; state n + 1 is of code n
        grid, n = self.config.grid, torch.arange(self.length, device=codes.device)[:, None]
        left = left.masked_fill((n % grid == 0) & (n > 0), 0)
        above = F.pad(above, (0, 0, grid - 1, 0))[:, : self.length]
        first = hidden[:, :1, self.width :]  # above the corner is the prefix
        above = torch.where(n == 0, first, above.masked_fill(n < grid, 0))
        return torch.cat([left, above], -1)
