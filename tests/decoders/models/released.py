"""Small random checkpoints in the released layouts, and plain float64 references of the models.

The references are written from the formulas of METHODS and share nothing with the code under test.
"""

import json
import math
from dataclasses import replace
from functools import cache, partial
from pathlib import Path

import torch

from tests.decoders.models.random_checkpoints import llamagen as checkpoints

WIDTH, LAYERS, HEADS, FFN, VOCAB, GRID, PREFIX, TEXT = 32, 2, 2, 48, 24, 4, 6, 12
SIZES = checkpoints.Sizes(WIDTH, LAYERS, HEADS, FFN, VOCAB, GRID, PREFIX, TEXT)
CLASSES, VERTICAL, GATE = 10, 2, 32  # of FlashAR: classes, vertical layers, width of the gate


def original_llamagen(classes: int | None = None) -> dict[str, torch.Tensor]:
    return checkpoints.original(SIZES, classes)


def hub_names(original: dict[str, torch.Tensor], layers: int = LAYERS) -> dict[str, torch.Tensor]:
    return checkpoints.hub_names(original, layers)


def original_flash(gate: str) -> dict[str, torch.Tensor]:
    """FlashAR's class-conditional file. gate: a network, a number, or none."""
    tensors = checkpoints.original(replace(SIZES, layers=LAYERS + VERTICAL), CLASSES)
    random = partial(checkpoints.random_tensor, seed=200)
    tensors |= {
        "medusa_norm.weight": random(WIDTH),
        "medusa_output.weight": random(VOCAB, WIDTH) * checkpoints.SHARP,
    }
    if gate == "network":
        tensors |= {
            "hv_gate_mlp.0.weight": random(GATE, 2 * VOCAB) * 3,
            "hv_gate_mlp.2.weight": random(1, GATE) * 3,
            "hv_gate_mlp.2.bias": random(1) - 1,
        }
    return tensors | ({} if gate == "none" else {"hv_mix_logit": torch.tensor(0.7)})


def write_original(path: Path, content: object, **config: int) -> Path:
    """An original .pt file, and next to it the number of heads of its width."""
    torch.save(content, path)
    (path.parent / "config.json").write_text(json.dumps({"num_attention_heads": HEADS} | config))
    return path


write_hub = partial(checkpoints.write_target, sizes=SIZES)
write_drafter = partial(checkpoints.write_drafter, sizes=SIZES)
drafter_tensors = partial(checkpoints.drafter_tensors, SIZES)


# ---- references in float64 ----------------------------------------------------------------------


@cache
def _target_weights() -> dict[str, torch.Tensor]:
    return {k: v.double() for k, v in hub_names(original_llamagen()).items()}


@cache
def _drafter_weights() -> dict[str, torch.Tensor]:
    return {k: v.double() for k, v in drafter_tensors().items()}


def _norm(x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
    return x / (x.square().mean(-1, keepdim=True) + 1e-5).sqrt() * weight


def _rotate(x: torch.Tensor, positions: list[int | None]) -> torch.Tensor:
    """x [T, H, d]: pair (2i, 2i + 1) of the first half turns by row * f_i, of the second by column
    * f_i; positions on the prefix (None) vanish."""
    pair = torch.arange(x.shape[-1] // 2)
    quarter = x.shape[-1] // 4
    rate = 10000.0 ** (-2.0 * (pair % quarter).double() / (x.shape[-1] // 2))
    own = torch.tensor([0 if position is None else position for position in positions])[
        :, None
    ]  # [T, 1]
    angle = torch.where(pair < quarter, own // GRID, own % GRID) * rate  # [T, d / 2]
    cos, sin = angle.cos()[:, None], angle.sin()[:, None]
    a, b = x[..., 0::2], x[..., 1::2]  # [T, H, d / 2] each
    out = torch.stack([a * cos - b * sin, a * sin + b * cos], -1).flatten(-2)
    return out * torch.tensor([position is not None for position in positions])[:, None, None]


def _layer(
    x: torch.Tensor,
    w: dict[str, torch.Tensor],
    at: str,
    positions: list[int | None],
    seen: torch.Tensor,
    input_norm: bool = True,
) -> torch.Tensor:
    """x [T, D], seen [T, T] bool; weights under hub names."""
    h = _norm(x, w[f"{at}input_layernorm.weight"]) if input_norm else x
    q, k, v = ((h @ w[f"{at}self_attn.{n}_proj.weight"].T).view(len(x), HEADS, -1) for n in "qkv")
    q, k = _rotate(q, positions), _rotate(k, positions)
    scores = torch.einsum("thd,shd->hts", q, k) / math.sqrt(q.shape[-1])
    weight = scores.masked_fill(~seen, -math.inf).softmax(-1)
    mixed = torch.einsum("hts,shd->thd", weight, v).reshape(len(x), -1)
    x = x + mixed @ w[f"{at}self_attn.o_proj.weight"].T
    h = _norm(x, w[f"{at}post_attention_layernorm.weight"])
    gate = h @ w[f"{at}mlp.gate_proj.weight"].T
    up = h @ w[f"{at}mlp.up_proj.weight"].T
    return x + (gate * gate.sigmoid() * up) @ w[f"{at}mlp.down_proj.weight"].T


@cache
def _visible(valid: tuple[bool, ...], total: int) -> torch.Tensor:
    """Who sees whom as in the released float32 code: a padded query sees all up to itself and the
    whole caption."""
    there = torch.tensor([*valid, *[True] * (total - len(valid))])
    caption = there & (torch.arange(total) < len(valid))
    causal = torch.ones(total, total, dtype=torch.bool).tril()
    return torch.where(there[:, None], causal & there, causal | caption)


def reference_states(
    features: torch.Tensor, valid: list[bool], codes: list[int], conditional: bool
) -> torch.Tensor:
    """Normed states [P + T, D] float64 of one row of the target."""
    w = _target_weights()
    if conditional:
        prefix = features.double() * torch.tensor(valid)[:, None]
    else:
        prefix = w["model.cls_embedding.uncond_embedding"]
    h = prefix @ w["model.cls_embedding.cap_proj.fc1.weight"].T
    gelu = 0.5 * h * (1 + torch.tanh(math.sqrt(2 / math.pi) * (h + 0.044715 * h**3)))
    x = torch.cat(
        [
            gelu @ w["model.cls_embedding.cap_proj.fc2.weight"].T,
            w["model.embed_tokens.weight"][codes],
        ]
    )
    positions: list[int | None] = [None] * PREFIX + list(range(len(codes)))
    for n in range(LAYERS):
        x = _layer(x, w, f"model.layers.{n}.", positions, _visible(tuple(valid), len(x)))
    return _norm(x, w["model.norm.weight"])


def reference_logits(states: torch.Tensor) -> torch.Tensor:
    """[T, D] -> [T, V]."""
    return states @ _target_weights()["lm_head.weight"].T


def reference_draft(states: torch.Tensor, codes: list[int]) -> torch.Tensor:
    """The released drafter's feature after the last of `codes`, [D] float64: it reads the states
    0..P - 1 + len(codes) - 1 with P - 1 zeros and then the codes, and has no padding mask."""
    w = _drafter_weights()
    ids = [0] * (PREFIX - 1) + codes
    x = torch.cat([w["embed_tokens.weight"][ids], states[: len(ids)]], 1)
    x = x @ w["fc.weight"].T + w["fc.bias"]
    positions: list[int | None] = [None] * (PREFIX - 1) + list(range(len(codes)))
    causal = torch.ones(len(x), len(x), dtype=torch.bool).tril()
    return _layer(x, w, "layers.0.", positions, causal, input_norm=False)[-1]


# ---- FlashAR (METHODS4, 1), without a cache: a whole forward for every anti-diagonal -------------


def reference_flash(
    tensors: dict[str, torch.Tensor], start: int, label: int, cfg: float
) -> torch.Tensor:
    """The greedy codes [L] of a class."""
    w = {k: v.double() for k, v in (tensors | hub_names(tensors, LAYERS + VERTICAL)).items()}
    codes: dict[int, int] = {}
    for diagonal in range(2 * GRID - 1):
        cond, uncond = (_flash_logits(w, start, row, codes, diagonal) for row in (label, CLASSES))
        codes |= {n: int((uncond[n] + cfg * (cond[n] - uncond[n])).argmax()) for n in cond}
    return torch.tensor([codes[n] for n in range(GRID**2)])


def _flash_logits(
    w: dict[str, torch.Tensor], start: int, label: int, codes: dict[int, int], diagonal: int
) -> dict[int, torch.Tensor]:
    """The mixed logits of every code of an anti-diagonal, behind those of all earlier ones."""
    places = list(codes)
    table = w["cls_embedding.embedding_table.weight"]
    x = torch.cat([table[[label]], w["tok_embeddings.weight"][[codes[n] for n in places]]])
    order = torch.tensor([-1, *(n // GRID + n % GRID for n in places)])
    seen = order[:, None] >= order
    for layer in range(LAYERS + VERTICAL):
        if layer == start:
            branch = x
        if layer == LAYERS:
            horizontal, x = x, branch
        x = _layer(x, w, f"model.layers.{layer}.", [None, *places], seen)
    h = _norm(horizontal, w["norm.weight"]) @ w["output.weight"].T
    v = _norm(x, w["medusa_norm.weight"]) @ w["medusa_output.weight"].T
    if diagonal == 0:
        return {0: _flash_mix(w, h[-1], v[-1])}
    state, logits = {n: i for i, n in enumerate(places, 1)}, {}
    for r in range(GRID):
        c = diagonal - r
        if 0 <= c < GRID:
            left, above = state.get(r * GRID + c - 1), state.get((r - 1) * GRID + c)
            if r == 0:
                logits[c] = h[left]
            elif c == 0:
                logits[r * GRID] = v[above]
            else:
                logits[r * GRID + c] = _flash_mix(w, h[left], v[above])
    return logits


def _flash_mix(w: dict[str, torch.Tensor], h: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
    if "hv_gate_mlp.0.weight" in w:
        z = torch.cat([h, v]) - torch.cat([h, v]).mean()
        z = w["hv_gate_mlp.0.weight"] @ (z / z.square().mean().sqrt()).clip(-6, 6)
        share = w["hv_gate_mlp.2.weight"] @ (z * z.sigmoid()) + w["hv_gate_mlp.2.bias"]
    else:
        share = w.get("hv_mix_logit", torch.zeros(()))
    return share.sigmoid() * h + (1 - share.sigmoid()) * v
