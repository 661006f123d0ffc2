"""Scenes: an unlimited procedural set of captioned 64x64 images, deterministic by (seed, split,
index), and captions that are wrong in one attribute.

Why: a tiny tokenizer and text-to-image model need data that is free, exactly reproducible, and
whose images vary much under one caption (random phases and noise), so that the autoregressive
model's next-code distribution is flat, which is the phenomenon the decoders are measured on.

Training, validation, benchmark prompts, reference statistics and the alignment gate never share a
scene's randomness, and a scene does not depend on how indices are batched: each has its own
counter-based generators, keyed by a hash of seed and split.
"""

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from decoders.errors import DecoderError, unknown
from decoders.tiny.captions import (
    ATTRIBUTES,
    BACKGROUND_COLOURS,
    BACKGROUND_KINDS,
    COLOURS,
    LIGHTS,
    RELATIONS,
    SHAPES,
    SIZES,
    TEXTURES,
    ObjectSpec,
    SceneSpec,
    describe,
    separable,
)
from decoders.tiny.render import render

SPLITS = ("train", "valid", "bench", "reference", "gate")
PAIRS = 0.35  # share of scenes with two objects
_VALUES = {"shape": SHAPES, "texture": TEXTURES, "size": SIZES}
_SPEC, _CAPTION, _PIXELS, _ALTER = range(4)  # independent random streams of one scene


@dataclass(frozen=True)
class SceneBatch:
    """images: float32 [n, 3, 64, 64] in [0, 1]; cover: float32 [n, 64, 64], how much of a
    pixel is an object's; captions, specs: n of each."""

    images: np.ndarray
    cover: np.ndarray
    captions: list[str]
    specs: list[SceneSpec]


def scene_batch(split: str, indices: Sequence[int], seed: int = 0) -> SceneBatch:
    """Draws the scenes at `indices`. Raises ValueError: unknown split, negative index."""
    pairs = scene_captions(split, indices, seed)
    key = _key(split, seed)
    specs = [spec for _, spec in pairs]
    images, cover = render(specs, [_rng(key, _PIXELS, int(i)) for i in indices])
    return SceneBatch(images, cover, [caption for caption, _ in pairs], specs)


def scene_captions(
    split: str, indices: Sequence[int], seed: int = 0
) -> list[tuple[str, SceneSpec]]:
    """Returns caption and spec of each scene of a `scene_batch`, without drawing. Raises alike."""
    key = _key(split, seed)
    pairs = []
    for i in map(int, indices):
        spec = _draw_spec(_rng(key, _SPEC, i))
        pairs.append((describe(spec, _rng(key, _CAPTION, i)), spec))
    return pairs


def counterfactual(
    split: str, index: int, seed: int = 0, attribute: str | None = None
) -> tuple[str, str, str]:
    """Returns (right caption, wrong caption, attribute): one attribute differs, the template does
    not.

    Colour, shape, texture and size are the first object's. attribute None draws one that the
    scene has; 'relation' on a scene of one object is a ValueError. Deterministic.
    """
    key = _key(split, seed)
    ((right, spec),) = scene_captions(split, [index], seed)
    rng = _rng(key, _ALTER, index)
    if attribute is None:
        possible = [a for a in ATTRIBUTES if a != "relation" or spec.relation is not None]
        attribute = _choose(rng, possible)
    wrong = describe(alter(spec, attribute, rng), _rng(key, _CAPTION, index))
    return right, wrong, attribute


def alter(spec: SceneSpec, attribute: str, rng: np.random.Generator) -> SceneSpec:
    """Copies a scene with exactly one attribute changed (of the first object).

    'background' changes either its kind or its colour. Raises ValueError for an unknown
    attribute, and for 'relation' on one object.
    """
    first, *rest = spec.objects
    if attribute == "relation":
        if spec.relation is None:
            raise ValueError(
                "a scene of one object has no relation to alter; choose another "
                f"attribute of {ATTRIBUTES}"
            )
        return replace(spec, relation=_choose(rng, _others(RELATIONS, spec.relation)))
    if attribute == "background":
        if rng.random() < 0.5:
            kinds = _others(BACKGROUND_KINDS, spec.background_kind)
            return replace(spec, background_kind=_choose(rng, kinds))
        grounds = _others(_grounds(spec.objects), spec.background_colour)
        if not grounds:
            raise ValueError(f"no other background colour stands out from {spec.objects}")
        return replace(spec, background_colour=_choose(rng, grounds))
    if attribute == "colour":
        taken = {o.colour for o in spec.objects}
        free = [c for c in COLOURS if c not in taken and separable(c, spec.background_colour)]
        changed = replace(first, colour=_choose(rng, free))
    elif attribute in _VALUES:
        others = _others(_VALUES[attribute], getattr(first, attribute))
        changed = replace(first, **{attribute: _choose(rng, others)})
    else:
        raise ValueError(unknown("attribute", attribute, ATTRIBUTES))
    return replace(spec, objects=(changed, *rest))


def _draw_spec(rng: np.random.Generator) -> SceneSpec:
    """Draws a random scene: uniform attributes; two objects differ in colour."""
    pair = rng.random() < PAIRS
    objects: list[ObjectSpec] = []
    for _ in range(2 if pair else 1):
        colours = [c for c in COLOURS if all(c != o.colour for o in objects)]
        values = (_choose(rng, options) for options in (SIZES, TEXTURES, colours, SHAPES))
        objects.append(ObjectSpec(*values))
    relation = _choose(rng, RELATIONS) if pair else None
    return SceneSpec(
        tuple(objects),
        relation,
        _choose(rng, BACKGROUND_KINDS),
        _choose(rng, _grounds(objects)),
        _choose(rng, tuple(LIGHTS)),
    )


def _grounds(objects: Sequence[ObjectSpec]) -> list[str]:
    """Lists the background colours from which every object stands out."""
    return [g for g in BACKGROUND_COLOURS if all(separable(o.colour, g) for o in objects)]


def _others(values: Sequence[str] | Mapping[str, object], current: str) -> list[str]:
    return [v for v in values if v != current]


def _choose(rng: np.random.Generator, values: Sequence[str]) -> str:
    """Chooses one of the values, for one uniform of the generator."""
    return values[int(rng.random() * len(values))]


def _key(split: str, seed: int) -> np.ndarray:
    """Returns the Philox key uint64 [2] of a split. Raises DecoderError for an unknown one."""
    if split not in SPLITS:
        raise DecoderError(unknown("split", split, SPLITS))
    return np.frombuffer(hashlib.sha256(f"scenes:{seed}:{split}".encode()).digest()[:16], "<u8")


def _rng(key: np.ndarray, stream: int, index: int) -> np.random.Generator:
    """Makes the generator of one stream of one scene. Raises ValueError for a negative index."""
    if index < 0:
        raise ValueError(f"a scene's index must not be negative, found {index}")
    counter = np.array([0, stream, index, 0], np.uint64)
    return np.random.Generator(np.random.Philox(key=key, counter=counter))
