"""Drawing scenes: signed distance shapes, light, shadow and grain, over a batch at once. Training
needs hundreds of images per second and core, each independent of its neighbours in the batch: so
its randomness is its own generator's, and all else is elementwise. Lengths are in pixels."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from typing import NamedTuple

import numpy as np

from decoders.tiny.scenes import (
    BACKGROUND_COLOURS,
    COLOURS,
    LIGHTS,
    PIXELS,
    ObjectSpec,
    SceneSpec,
    generator_of,
    scene_captions,
    stream_key,
)

Array = np.ndarray
SIDE = 64  # pixels
COARSE, FINE = 11, 32  # cells a side of the smooth and of the grainy noise grids
FIELD_NORMALS = COARSE * COARSE + FINE * FINE  # standard normals one surface takes
FIELD_UNIFORMS = 3  # angle, phase, period
_CHUNK = 32  # images drawn together: small enough for the cache
_GEOMETRY = 12  # uniforms that place the objects
_SURFACES = 3  # background and up to two objects
_GRAIN = 0.012  # standard deviation of the sensor's noise
# Radii, as (least, span), of a small and a large object: wide enough that sixteen codes a side show
# a shape and its surface.
_LONE_RADII = (12.5, 1.5), (19.5, 3.0)
_PAIR_RADII = (9.0, 1.2), (13.2, 1.5)


class Surface(NamedTuple):
    """n surfaces: their pixels x, y [n, S, S], in pixels; their random normals
    [n, FIELD_NORMALS] and uniforms in [0, 1) [n, FIELD_UNIFORMS]; tint [n, 3] of their colour,
    light [n, 2]. All float32."""

    x: Array
    y: Array
    normals: Array
    uniforms: Array
    tint: Array
    light: Array

    def of(self, rows: Array) -> Surface:
        return Surface(*(part[rows] for part in self))


@dataclass(frozen=True)
class SceneBatch:
    """images: float32 [n, 3, 64, 64] in [0, 1]; cover: float32 [n, 64, 64], how much of a pixel is
    an object's; captions, specs: n of each."""

    images: Array
    cover: Array
    captions: list[str]
    specs: list[SceneSpec]


def scene_batch(split: str, indices: Sequence[int], seed: int = 0) -> SceneBatch:
    """Draws the scenes at `indices`. Raises DecoderError for an unknown split."""
    pairs, key = scene_captions(split, indices, seed), stream_key(split, seed)
    specs = [spec for _, spec in pairs]
    images, cover = render(specs, [generator_of(key, PIXELS, int(i)) for i in indices])
    return SceneBatch(images, cover, [caption for caption, _ in pairs], specs)


def render(specs: Sequence[SceneSpec], rngs: Sequence[np.random.Generator]) -> tuple[Array, Array]:
    """Draws the scenes, float32 [n, 3, 64, 64] in [0, 1], and how much of every pixel their objects
    cover, float32 [n, 64, 64] in [0, 1]; image i uses rngs[i] only."""
    images = np.empty((len(specs), 3, SIDE, SIDE), np.float32)
    cover = np.empty((len(specs), SIDE, SIDE), np.float32)
    for start in range(0, len(specs), _CHUNK):
        part = slice(start, start + _CHUNK)
        images[part], cover[part] = _render_chunk(specs[part], rngs[part])
    return images, cover


def _render_chunk(
    specs: Sequence[SceneSpec], rngs: Sequence[np.random.Generator]
) -> tuple[Array, Array]:
    n = len(specs)
    geometry = np.empty((n, _GEOMETRY))
    uniforms = np.empty((n, _SURFACES, FIELD_UNIFORMS), np.float32)
    normals = np.empty((n, _SURFACES, FIELD_NORMALS), np.float32)
    tint = np.empty((n, _SURFACES, 3), np.float32)
    grain = np.empty((n, SIDE, SIDE), np.float32)
    for i, rng in enumerate(rngs):  # each image draws the same amounts, in the same order
        geometry[i] = rng.random(_GEOMETRY)
        uniforms[i] = rng.random((_SURFACES, FIELD_UNIFORMS), dtype=np.float32)
        normals[i] = rng.standard_normal((_SURFACES, FIELD_NORMALS), dtype=np.float32)
        tint[i] = rng.uniform(-0.03, 0.03, (_SURFACES, 3))
        grain[i] = rng.standard_normal((SIDE, SIDE), dtype=np.float32)
    axis = np.arange(SIDE, dtype=np.float32) + 0.5
    y, x = np.meshgrid(axis, axis, indexing="ij")  # [S, S]
    x, y = np.broadcast_to(x, (n, SIDE, SIDE)), np.broadcast_to(y, (n, SIDE, SIDE))
    light = np.array([LIGHTS[s.light] for s in specs], np.float32)  # [n, 2]
    grounds, *surfaces = (
        Surface(x, y, normals[:, k], uniforms[:, k], tint[:, k], light) for k in range(_SURFACES)
    )
    colour = np.array([BACKGROUND_COLOURS[s.background_colour] for s in specs], np.float32)
    change = np.empty(grounds.x.shape, np.float32)
    for kind, rows in _by_kind([s.background_kind for s in specs]):
        change[rows] = background_texture(kind, grounds.of(rows))
    fall = (x - 32) * light[:, 0, None, None] + (y - 32) * light[:, 1, None, None]
    image = _tone(colour + grounds.tint, change, 0.5, 0.3) * (1 + 0.10 * fall / 32)[:, None]
    places = np.array([_place(s, g) for s, g in zip(specs, geometry, strict=True)], np.float32)
    cover = np.zeros((n, SIDE, SIDE), np.float32)
    for k in (1, 0):  # the first object is drawn last, on top
        rows = np.array([i for i, s in enumerate(specs) if len(s.objects) > k], int)
        if rows.size:
            things = [specs[i].objects[k] for i in rows]
            surface = surfaces[k].of(rows)
            image[rows], more = _draw(image[rows], things, places[rows, k], surface)
            cover[rows] = np.maximum(cover[rows], more)
    return np.clip(image + _GRAIN * grain[:, None], 0, 1), cover


def _place(spec: SceneSpec, u: Array) -> list[tuple[float, float, float, float]]:
    """Places two objects (the second may be unused): centre x, centre y, radius, turn (radians)."""
    pair = len(spec.objects) == 2
    small, large = _PAIR_RADII if pair else _LONE_RADII
    ranges = [small if thing.size == "small" else large for thing in spec.objects]
    radii = [low + span * v for (low, span), v in zip(ranges, u[:2], strict=False)]
    turns = [(v - 0.5) * 0.5 for v in u[2:4]]
    if not pair:
        room = 31 - 1.15 * radii[0]
        centre = [(32 + (v - 0.5) * 2 * min(room, 11)) for v in u[4:6]]
        return [(centre[0], centre[1], radii[0], turns[0]), (0.0, 0.0, 1.0, 0.0)]
    apart = 1.03 * sum(radii) + 1 + 2 * u[6]
    room = 64 - apart - 1.05 * sum(radii)  # what is left along the axis; may be a little below 0
    start = 1.05 * radii[0] + room * u[7]
    along = [start, start + apart]
    across = [32 + (v - 0.5) * 16 for v in u[8:10]]
    if spec.relation in ("right", "below"):
        along = [64 - a for a in along]
    flip = spec.relation in ("above", "below")
    xs, ys = (across, along) if flip else (along, across)
    return [(xs[k], ys[k], radii[k], turns[k]) for k in (0, 1)]


def _tone(colour: Array, change: Array, dark: float, bright: float) -> Array:
    """Darkens or brightens colours [n, 3] by change [n, S, S] in [-1, 1] -> [n, 3, S, S]."""
    colour, change = colour[:, :, None, None], change[:, None]
    down, up = np.minimum(change, 0), np.maximum(change, 0)
    return colour * (1 + dark * down) + (1 - colour) * (bright * up)  # [n, 3, S, S]


def _by_kind(kinds: Sequence[str]) -> list[tuple[str, Array]]:
    """Lists the distinct kinds, each with the rows that have it."""
    names = np.array(kinds)
    return [(str(kind), np.flatnonzero(names == kind)) for kind in np.unique(names)]


def _draw(
    image: Array, things: Sequence[ObjectSpec], place: Array, surface: Surface
) -> tuple[Array, Array]:
    """Draws one more object into images [n, 3, S, S]; returns them and its cover [n, S, S]; place
    [n, 4], see `_place`."""
    x, y, light = surface.x, surface.y, surface.light
    cx, cy, r, turn = (place[:, j, None, None] for j in range(4))  # [n, 1, 1] each
    lx, ly = light[:, 0, None, None], light[:, 1, None, None]
    px, py = x - cx, y - cy
    inside = np.empty(x.shape, np.float32)
    shadow, change = np.empty_like(inside), np.empty_like(inside)
    for shape, rows in _by_kind([t.shape for t in things]):
        inside[rows] = _distance(shape, px[rows], py[rows], r[rows], turn[rows])
        shift = 0.32 * r[rows]
        shadow[rows] = _distance(
            shape, px[rows] + shift * lx[rows], py[rows] + shift * ly[rows], r[rows], turn[rows]
        )
    for kind, rows in _by_kind([t.texture for t in things]):
        change[rows] = object_texture(kind, surface.of(rows))
    cover = np.clip(0.5 - inside, 0, 1)[:, None]
    dark = np.clip(0.5 - shadow / 5, 0, 1)[:, None]
    colour = np.array([COLOURS[t.colour] for t in things], np.float32) + surface.tint
    facing = np.clip((px * lx + py * ly) / r, -1, 1)
    painted = _tone(colour, change, 0.55, 0.35) * (1 + 0.18 * facing)[:, None]
    smooth = np.array([t.texture == "smooth" for t in things], np.float32)[:, None, None]
    away = ((px - 0.6 * r * lx) ** 2 + (py - 0.6 * r * ly) ** 2) / (0.30 * r) ** 2
    shine = (0.45 * smooth * np.exp(-np.minimum(away, 30)))[:, None]
    painted = np.clip(painted + (1 - painted) * shine, 0, 1)
    return image * (1 - 0.5 * dark) * (1 - cover) + painted * cover, cover[:, 0]


def _distance(shape: str, px: Array, py: Array, r: Array, turn: Array) -> Array:
    """Computes the signed distance to a shape's edge, negative inside, float32 [n, S, S]. px, py:
    offsets from the centre [n, S, S]; r: radius [n, 1, 1]; turn: radians [n, 1, 1]."""
    if shape in ("circle", "ring"):
        length = np.sqrt(px * px + py * py)
        return length - r if shape == "circle" else np.abs(length - 0.76 * r) - 0.28 * r
    c, s = np.cos(turn), np.sin(turn)
    qx, qy = c * px + s * py, c * py - s * px
    if shape == "square":
        return np.maximum(np.abs(qx), np.abs(qy)) - 0.86 * r
    if shape == "triangle":
        qy = qy - 0.18 * r
        return np.maximum(qy, 0.8660254 * np.abs(qx) - 0.5 * qy) - 0.60 * r
    if shape == "cross":
        ax, ay = np.abs(qx), np.abs(qy)
        width = 0.34 * r
        return np.minimum(
            np.maximum(ax - width, ay - 1.05 * r), np.maximum(ax - 1.05 * r, ay - width)
        )
    if shape == "star":
        sector = 2 * np.pi / 5
        angle = np.arctan2(qx, -qy)  # from the upward point
        fold = np.abs(angle - sector * np.round(angle / sector))
        length = np.sqrt(qx * qx + qy * qy)
        outer, ix, iy = 1.18, 0.52 * np.cos(sector / 2), 0.52 * np.sin(sector / 2)
        nx, ny = iy, outer - ix
        norm = float(np.hypot(nx, ny))
        dot = length * (np.cos(fold) * (nx / norm) + np.sin(fold) * (ny / norm))
        return (dot - r * (outer * nx / norm)).astype(np.float32)
    raise ValueError(f"unknown shape {shape!r}")


# ---- random surfaces: a random phase, direction or noise for each image -------------------------


@cache
def _upsampler(cells: int) -> Array:
    """Computes weights float32 [S, cells] of smoothstep interpolation from cells to pixels."""
    place = (np.arange(SIDE) + 0.5) / SIDE * (cells - 1)
    low = np.minimum(place.astype(int), cells - 2)
    t = place - low
    t = t * t * (3 - 2 * t)
    weights = np.zeros((SIDE, cells), np.float32)
    weights[np.arange(SIDE), low] = 1 - t
    weights[np.arange(SIDE), low + 1] = t
    weights.setflags(write=False)
    return weights


def noise_fields(normals: Array) -> tuple[Array, Array]:
    """Enlarges coarse and fine noise smoothly, float32 [n, FIELD_NORMALS] -> two of [n, S, S]."""
    split = COARSE * COARSE
    coarse, fine = _upsampler(COARSE), _upsampler(FINE)
    return (
        coarse @ normals[:, :split].reshape(-1, COARSE, COARSE) @ coarse.T,  # [n, S, S]
        fine @ normals[:, split:].reshape(-1, FINE, FINE) @ fine.T,  # [n, S, S]
    )


def _wave(surface: Surface, turn: float, period: float) -> Array:
    """Computes the argument of a wave of random direction, phase and period, [n, S, S] radians."""
    x, y, uniforms = surface.x, surface.y, surface.uniforms
    angle = (uniforms[:, 0] * np.pi + turn)[:, None, None]
    phase = (uniforms[:, 1] * 2 * np.pi)[:, None, None]
    number = (2 * np.pi / (period * (0.85 + 0.3 * uniforms[:, 2])))[:, None, None]
    return number * (x * np.cos(angle) + y * np.sin(angle)) + phase


def object_texture(kind: str, surface: Surface) -> Array:
    """Computes the change of brightness of an object's surface, float32 [n, S, S] in [-1, 1]; kind:
    a value of TEXTURES."""
    if kind == "smooth":
        return np.zeros_like(surface.x)
    if kind == "striped":
        return np.clip(1.8 * np.sin(_wave(surface, 0.0, 9.0)), -1, 1)
    if kind == "checkered":
        return np.clip(
            5 * np.sin(_wave(surface, 0.0, 15.0)) * np.sin(_wave(surface, np.pi / 2, 15.0)), -1, 1
        )
    coarse, fine = noise_fields(surface.normals)
    if kind == "cloudy":
        return np.clip(1.1 * coarse, -1, 1)
    if kind == "grainy":
        return np.clip(fine, -1, 1)
    if kind == "marbled":
        vein = np.abs(np.sin(0.5 * _wave(surface, 0.0, 14.0) + 1.5 * coarse))
        return np.clip(0.6 - 3.5 * np.clip(0.60 - vein, 0, 1), -1, 1)
    raise ValueError(f"unknown texture {kind!r}")


def background_texture(kind: str, surface: Surface) -> Array:
    """Computes that of a background, as `object_texture`; kind: a value of BACKGROUND_KINDS."""
    if kind == "plain":
        return np.zeros_like(surface.x)
    if kind == "gradient":
        angle = (surface.uniforms[:, 0] * 2 * np.pi)[:, None, None]
        slope = (surface.x - 32) * np.cos(angle) + (surface.y - 32) * np.sin(angle)
        return np.clip(slope / 32, -1.2, 1.2)
    if kind == "woven":
        return 0.35 * (np.sin(_wave(surface, 0.0, 5.5)) + np.sin(_wave(surface, np.pi / 2, 5.5)))
    coarse, fine = noise_fields(surface.normals)
    if kind == "cloudy":
        return np.clip(0.60 * coarse, -0.7, 1)
    if kind == "sandy":
        return np.clip(0.42 * fine, -0.6, 1)
    raise ValueError(f"unknown background {kind!r}")
