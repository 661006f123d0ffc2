"""Scenes: an unlimited procedural set of captioned 64x64 images, deterministic by (seed, split,
index): what a scene is made of, how captions say it, and captions that are wrong in one attribute.
`decoders.tiny.render` draws them.

Why: a tiny text-to-image model needs data that is free and reproducible, and whose images vary much
under one caption, so that the next-code distribution is flat, which is the phenomenon the decoders
are measured on. Splits never share a scene's randomness, and a scene does not depend on its batch:
each has its own counter-based generators, keyed by a hash of seed and split.

Colours are RGB in [0, 1], chosen to stay apart under shading. Synonyms and word orders make the
text condition a real one while the vocabulary stays small. Every attribute but the light is always
said, so that changing one attribute always changes the caption.
"""

import hashlib
import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from decoders.errors import DecoderError, unknown

RGB = tuple[float, float, float]

# scenes.json: colours; of a light the direction towards the lamp (x right, y down); of the other
# attributes the values, each with the words that captions may have for it.
_DATA: dict[str, Any] = json.loads(Path(__file__).with_name("scenes.json").read_text("utf-8"))
COLOURS: dict[str, RGB] = _DATA["colours"]
BACKGROUND_COLOURS: dict[str, RGB] = _DATA["background_colours"]
LIGHTS: dict[str, tuple[float, float]] = _DATA["lights"]
_SIZE, _SHAPE, _TEXTURE, _RELATION, _KIND, _LIGHT = _TABLES = _DATA["words"].values()
SIZES, SHAPES, TEXTURES = tuple(_SIZE), tuple(_SHAPE), tuple(_TEXTURE)
RELATIONS, BACKGROUND_KINDS = tuple(_RELATION), tuple(_KIND)
ATTRIBUTES = ("colour", "shape", "texture", "relation", "size", "background")
MIN_CONTRAST = 0.42  # least RGB distance between an object and its background


@dataclass(frozen=True)
class ObjectSpec:
    """One object: values of SIZES, TEXTURES, COLOURS and SHAPES."""

    size: str
    texture: str
    colour: str
    shape: str


@dataclass(frozen=True)
class SceneSpec:
    """Everything a caption can say about one scene. objects: one or two; relation: where the first
    stands from the second, a value of RELATIONS, None with one object; background_kind,
    background_colour, light: values of BACKGROUND_KINDS, BACKGROUND_COLOURS, LIGHTS."""

    objects: tuple[ObjectSpec, ...]
    relation: str | None
    background_kind: str
    background_colour: str
    light: str


def separable(colour: str, background_colour: str) -> bool:
    """Tells whether an object of this colour stands out from such a background."""
    return math.dist(COLOURS[colour], BACKGROUND_COLOURS[background_colour]) >= MIN_CONTRAST


# ---- the caption grammar ------------------------------------------------------------------------

_SURFACE = ("surface", "texture", "finish")
_PLACE = ("on", "against", "in front of")
_GROUND = ("background", "background", "backdrop")
_LEAD = ("", "", "a picture of", "an image of", "there is")
_LISTS = (_SURFACE, _PLACE, _GROUND, _LEAD)
_FIXED = ("a with ,",)
_DRAWS = 24  # uniforms a caption takes, always all of them, so that a template is reproducible


def describe(spec: SceneSpec, rng: np.random.Generator) -> str:
    """Writes one caption of the scene, lower case, about 9 to 26 words (commas are not counted).
    The template and synonyms depend on `rng` alone: captions of two specs with equal object counts
    and equal generators differ only in the attributes that differ."""
    uniforms = iter(rng.random(_DRAWS).tolist())

    def pick(options: Sequence[str]) -> str:
        return options[int(next(uniforms) * len(options))]

    single = len(spec.objects) == 1  # two objects take the shorter forms
    order, say_light = next(uniforms), next(uniforms) < (0.7 if single else 0.4)
    things = []
    for thing in spec.objects:
        size, texture = pick(_SIZE[thing.size]), pick(_TEXTURE[thing.texture])
        shape, surface = pick(_SHAPE[thing.shape]), pick(_SURFACE)
        style = pick(("before", "before", "swapped", "after" if single else "before"))
        if style == "before":
            things.append(f"a {size} {texture} {thing.colour} {shape}")
        elif style == "swapped":
            things.append(f"a {size} {thing.colour} {texture} {shape}")
        else:
            things.append(f"a {size} {thing.colour} {shape} with a {texture} {surface}")
    body = things[0]
    if spec.relation is not None:
        body = f"{things[0]} {pick(_RELATION[spec.relation])} {things[1]}"
    place, kind, ground = pick(_PLACE), pick(_KIND[spec.background_kind]), pick(_GROUND)
    pair = f"{kind} {spec.background_colour}", f"{spec.background_colour} {kind}"
    ground = f"{place} a {pick(pair)} {ground}"
    light, lead = pick(_LIGHT[spec.light]), pick(_LEAD if single else _LEAD[:1])
    text = f"{lead} {body} {ground}" if order < 0.75 else f"{ground}, {lead} {body}"
    return " ".join((text + (f", {light}" if say_light else "")).split())


def caption_tokens(caption: str) -> list[str]:
    """Splits a caption into words, lower case; a comma is its own token."""
    letters = "".join(c if c.isalnum() or c in ", " else " " for c in caption.lower())
    return letters.replace(",", " , ").split()


def vocabulary() -> list[str]:
    """Lists every token that a caption of `describe` can have, sorted, without repeats."""
    phrases = [*_FIXED, *COLOURS, *BACKGROUND_COLOURS]
    phrases += [option for table in _TABLES for options in table.values() for option in options]
    phrases += [option for options in _LISTS for option in options]
    return sorted({token for phrase in phrases for token in caption_tokens(phrase)})


# ---- scenes by number ---------------------------------------------------------------------------

SPLITS = ("train", "valid", "bench", "reference", "gate")
TWO_OBJECTS_SHARE = 0.35  # share of scenes with two objects
SPEC, CAPTION, PIXELS, ALTER = range(4)  # independent random streams of one scene
_VALUES = {"shape": SHAPES, "texture": TEXTURES, "size": SIZES}


def scene_captions(
    split: str, indices: Sequence[int], seed: int = 0
) -> list[tuple[str, SceneSpec]]:
    """Returns caption and spec of each scene of a `scene_batch`, without drawing. Raises alike."""
    key = stream_key(split, seed)
    pairs = []
    for i in map(int, indices):
        spec = _draw_spec(generator_of(key, SPEC, i))
        pairs.append((describe(spec, generator_of(key, CAPTION, i)), spec))
    return pairs


def counterfactual(
    split: str, index: int, seed: int = 0, attribute: str | None = None
) -> tuple[str, str, str]:
    """Returns (right caption, wrong caption, attribute): one attribute (None: drawn), of the first
    object where it is an object's, differs, the template does not. Raises ValueError for the
    relation of one object."""
    key = stream_key(split, seed)
    ((right, spec),) = scene_captions(split, [index], seed)
    rng = generator_of(key, ALTER, index)
    if attribute is None:
        possible = [a for a in ATTRIBUTES if a != "relation" or spec.relation is not None]
        attribute = _choose(rng, possible)
    wrong = describe(alter(spec, attribute, rng), generator_of(key, CAPTION, index))
    return right, wrong, attribute


def alter(spec: SceneSpec, attribute: str, rng: np.random.Generator) -> SceneSpec:
    """Copies a scene with exactly one attribute changed (of the first object). 'background' changes
    either its kind or its colour. Raises ValueError for an unknown attribute, and for 'relation' on
    one object."""
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
    pair = rng.random() < TWO_OBJECTS_SHARE
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


def stream_key(split: str, seed: int) -> np.ndarray:
    """Returns the Philox key uint64 [2] of a split. Raises DecoderError for an unknown one."""
    if split not in SPLITS:
        raise DecoderError(unknown("split", split, SPLITS))
    return np.frombuffer(hashlib.sha256(f"scenes:{seed}:{split}".encode()).digest()[:16], "<u8")


def generator_of(key: np.ndarray, stream: int, index: int) -> np.random.Generator:
    """Makes the generator of one stream of one scene."""
    counter = np.array([0, stream, index, 0], np.uint64)
    return np.random.Generator(np.random.Philox(key=key, counter=counter))
