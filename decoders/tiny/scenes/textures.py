"""Random surfaces: noise fields, object textures and backgrounds, for many images at once.

Why: each texture has a random phase, direction or noise, so that images of one caption differ.
All functions are elementwise over the leading axis (matrix products act per image on equal
shapes), so a row does not depend on the rows beside it.
"""

from functools import cache

import numpy as np

Array = np.ndarray
COARSE, FINE = 11, 32  # cells a side of the smooth and of the grainy noise grids
FIELD_NORMALS = COARSE * COARSE + FINE * FINE  # standard normals one surface takes
FIELD_UNIFORMS = 3  # angle, phase, period


@cache
def _upsampler(cells: int, size: int) -> Array:
    """Weights float32 [size, cells] of smoothstep interpolation from cells to pixels."""
    place = (np.arange(size) + 0.5) / size * (cells - 1)
    low = np.minimum(place.astype(int), cells - 2)
    t = place - low
    t = t * t * (3 - 2 * t)
    weights = np.zeros((size, cells), np.float32)
    weights[np.arange(size), low] = 1 - t
    weights[np.arange(size), low + 1] = t
    weights.setflags(write=False)
    return weights


def _upsample(grid: Array, size: int) -> Array:
    """Smooth enlargement of noise grids, float32 [n, g, g] -> [n, size, size]."""
    weights = _upsampler(grid.shape[1], size)
    return weights @ grid @ weights.T  # [n, S, S]


def noise_fields(normals: Array, size: int) -> tuple[Array, Array]:
    """Coarse and fine noise fields, float32 [n, FIELD_NORMALS] -> two of [n, size, size]."""
    split = COARSE * COARSE
    coarse = _upsample(normals[:, :split].reshape(-1, COARSE, COARSE), size)  # [n, S, S]
    fine = _upsample(normals[:, split:].reshape(-1, FINE, FINE), size)  # [n, S, S]
    return coarse, fine


def _wave(x: Array, y: Array, uniforms: Array, turn: float, period: float) -> Array:
    """The argument of a wave with random direction, phase and period, [n, S, S] radians."""
    angle = (uniforms[:, 0] * np.pi + turn)[:, None, None]
    phase = (uniforms[:, 1] * 2 * np.pi)[:, None, None]
    number = (2 * np.pi / (period * (0.85 + 0.3 * uniforms[:, 2])))[:, None, None]
    return number * (x * np.cos(angle) + y * np.sin(angle)) + phase


def object_texture(kind: str, x: Array, y: Array, normals: Array, uniforms: Array) -> Array:
    """Brightness change of an object's surface, float32 [n, S, S] in [-1, 1].

    kind: a value of TEXTURES; x, y: float32 [n, S, S], in units of 1/64 of the image's side;
    normals: float32 [n, FIELD_NORMALS]; uniforms: float32 [n, FIELD_UNIFORMS] in [0, 1).
    """
    size = x.shape[-1]
    if kind == "smooth":
        return np.zeros_like(x)
    if kind == "striped":
        return np.clip(1.8 * np.sin(_wave(x, y, uniforms, 0.0, 9.0)), -1, 1)
    if kind == "checkered":
        first = np.sin(_wave(x, y, uniforms, 0.0, 15.0))
        second = np.sin(_wave(x, y, uniforms, np.pi / 2, 15.0))
        return np.clip(5 * first * second, -1, 1)
    coarse, fine = noise_fields(normals, size)
    if kind == "cloudy":
        return np.clip(1.1 * coarse, -1, 1)
    if kind == "grainy":
        return np.clip(fine, -1, 1)
    if kind == "marbled":
        vein = np.abs(np.sin(0.5 * _wave(x, y, uniforms, 0.0, 14.0) + 1.5 * coarse))
        return np.clip(0.6 - 3.5 * np.clip(0.60 - vein, 0, 1), -1, 1)
    raise ValueError(f"unknown texture {kind!r}")


def background_texture(kind: str, x: Array, y: Array, normals: Array, uniforms: Array) -> Array:
    """Brightness change of a background, as `object_texture`, for a value of BACKGROUND_KINDS."""
    size = x.shape[-1]
    if kind == "plain":
        return np.zeros_like(x)
    if kind == "gradient":
        angle = (uniforms[:, 0] * 2 * np.pi)[:, None, None]
        return np.clip(((x - 32) * np.cos(angle) + (y - 32) * np.sin(angle)) / 32, -1.2, 1.2)
    if kind == "woven":
        first = np.sin(_wave(x, y, uniforms, 0.0, 5.5))
        second = np.sin(_wave(x, y, uniforms, np.pi / 2, 5.5))
        return 0.35 * (first + second)
    coarse, fine = noise_fields(normals, size)
    if kind == "cloudy":
        return np.clip(0.60 * coarse, -0.7, 1)
    if kind == "sandy":
        return np.clip(0.42 * fine, -0.6, 1)
    raise ValueError(f"unknown background {kind!r}")
