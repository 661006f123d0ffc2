"""Deterministic scenes by (seed, split, index), and captions that are wrong in one attribute.

Why: training, validation, benchmark prompts, reference statistics and the alignment gate must
never share a scene's randomness, and a scene must not depend on how indices are batched. Each
scene therefore has its own counter-based generators, keyed by a hash of seed and split.
"""

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from decoders.errors import DecoderError, unknown
from decoders.tiny.scenes import attributes as at
from decoders.tiny.scenes.render import render

SPLITS = ("train", "valid", "bench", "reference", "gate")
PAIRS = 0.35  # share of scenes with two objects
_VALUES = {"shape": at.SHAPES, "texture": at.TEXTURES, "size": at.SIZES}
_SPEC, _CAPTION, _PIXELS, _ALTER = range(4)  # independent random streams of one scene


@dataclass(frozen=True)
class SceneBatch:
    """images: float32 [n, 3, 64, 64] in [0, 1]; cover: float32 [n, 64, 64], how much of a
    pixel is an object's; captions, specs: n of each."""

    images: np.ndarray
    cover: np.ndarray
    captions: list[str]
    specs: list[at.SceneSpec]


def scene_batch(split: str, indices: Sequence[int], seed: int = 0) -> SceneBatch:
    """The scenes at `indices`, drawn. Raises ValueError: unknown split, negative index."""
    pairs = scene_captions(split, indices, seed)
    key = _key(split, seed)
    specs = [spec for _, spec in pairs]
    images, cover = render(specs, [_rng(key, _PIXELS, int(i)) for i in indices])
    return SceneBatch(images, cover, [caption for caption, _ in pairs], specs)


def scene_captions(
    split: str, indices: Sequence[int], seed: int = 0
) -> list[tuple[str, at.SceneSpec]]:
    """Caption and spec of each scene, those of `scene_batch`, without drawing. Raises alike."""
    key = _key(split, seed)
    pairs = []
    for i in map(int, indices):
        spec = _draw_spec(_rng(key, _SPEC, i))
        pairs.append((at.describe(spec, _rng(key, _CAPTION, i)), spec))
    return pairs


def counterfactual(
    split: str, index: int, seed: int = 0, attribute: str | None = None
) -> tuple[str, str, str]:
    """(right caption, wrong caption, attribute): one attribute differs, the template does not.

    Colour, shape, texture and size are the first object's. attribute None draws one that the
    scene has; 'relation' on a scene of one object is a ValueError. Deterministic.
    """
    key = _key(split, seed)
    ((right, spec),) = scene_captions(split, [index], seed)
    rng = _rng(key, _ALTER, index)
    if attribute is None:
        possible = [a for a in at.ATTRIBUTES if a != "relation" or spec.relation is not None]
        attribute = _choose(rng, possible)
    wrong = at.describe(alter(spec, attribute, rng), _rng(key, _CAPTION, index))
    return right, wrong, attribute


def alter(spec: at.SceneSpec, attribute: str, rng: np.random.Generator) -> at.SceneSpec:
    """A copy of the scene that differs in exactly one attribute (of the first object).

    'background' changes either its kind or its colour. Raises ValueError for an unknown
    attribute, and for 'relation' on one object.
    """
    first, *rest = spec.objects
    if attribute == "relation":
        if spec.relation is None:
            raise ValueError(
                "a scene of one object has no relation to alter; choose another "
                f"attribute of {at.ATTRIBUTES}"
            )
        return replace(spec, relation=_choose(rng, _others(at.RELATIONS, spec.relation)))
    if attribute == "background":
        if rng.random() < 0.5:
            kinds = _others(at.BACKGROUND_KINDS, spec.background_kind)
            return replace(spec, background_kind=_choose(rng, kinds))
        grounds = _others(_grounds(spec.objects), spec.background_colour)
        if not grounds:
            raise ValueError(f"no other background colour stands out from {spec.objects}")
        return replace(spec, background_colour=_choose(rng, grounds))
    if attribute == "colour":
        taken = {o.colour for o in spec.objects}
        free = [c for c in at.COLOURS if c not in taken and at.separable(c, spec.background_colour)]
        changed = replace(first, colour=_choose(rng, free))
    elif attribute in _VALUES:
        others = _others(_VALUES[attribute], getattr(first, attribute))
        changed = replace(first, **{attribute: _choose(rng, others)})
    else:
        raise ValueError(unknown("attribute", attribute, at.ATTRIBUTES))
    return replace(spec, objects=(changed, *rest))


def _draw_spec(rng: np.random.Generator) -> at.SceneSpec:
    """A random scene: uniform attributes; two objects differ in colour."""
    pair = rng.random() < PAIRS
    objects: list[at.ObjectSpec] = []
    for _ in range(2 if pair else 1):
        colours = [c for c in at.COLOURS if all(c != o.colour for o in objects)]
        objects.append(
            at.ObjectSpec(
                _choose(rng, at.SIZES),
                _choose(rng, at.TEXTURES),
                _choose(rng, colours),
                _choose(rng, at.SHAPES),
            )
        )
    relation = _choose(rng, at.RELATIONS) if pair else None
    return at.SceneSpec(
        tuple(objects),
        relation,
        _choose(rng, at.BACKGROUND_KINDS),
        _choose(rng, _grounds(objects)),
        _choose(rng, tuple(at.LIGHTS)),
    )


def _grounds(objects: Sequence[at.ObjectSpec]) -> list[str]:
    """The background colours from which every object stands out."""
    return [g for g in at.BACKGROUND_COLOURS if all(at.separable(o.colour, g) for o in objects)]


def _others(values: Sequence[str] | Mapping[str, object], current: str) -> list[str]:
    """The values but the current one."""
    return [v for v in values if v != current]


def _choose(rng: np.random.Generator, values: Sequence[str]) -> str:
    """One of the values, uniformly, for one uniform of the generator."""
    return values[int(rng.random() * len(values))]


def _key(split: str, seed: int) -> np.ndarray:
    """The Philox key uint64 [2] of a split, or DecoderError for an unknown one."""
    if split not in SPLITS:
        raise DecoderError(unknown("split", split, SPLITS))
    return np.frombuffer(hashlib.sha256(f"scenes:{seed}:{split}".encode()).digest()[:16], "<u8")


def _rng(key: np.ndarray, stream: int, index: int) -> np.random.Generator:
    """The generator of one stream of one scene; ValueError for a negative index."""
    if index < 0:
        raise ValueError(f"a scene's index must not be negative, found {index}")
    counter = np.array([0, stream, index, 0], np.uint64)
    return np.random.Generator(np.random.Philox(key=key, counter=counter))
