"""What a scene is made of, and how captions say it: attributes, the specification of one scene, the
grammar.

Captions, rendering and the alignment test (counterfactual captions) must agree on one list of
values. Colours are RGB in [0, 1], chosen to stay apart under shading. Synonyms and word orders make
the text condition a real one while the vocabulary stays small enough for word-level tokens. Every
attribute but the light is always said, so that changing one attribute always changes the caption.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

RGB = tuple[float, float, float]

COLOURS: dict[str, RGB] = {
    "red": (0.86, 0.10, 0.12),
    "orange": (1.00, 0.52, 0.05),
    "yellow": (1.00, 0.90, 0.15),
    "lime": (0.60, 0.92, 0.15),
    "green": (0.05, 0.52, 0.16),
    "cyan": (0.10, 0.80, 0.85),
    "blue": (0.12, 0.28, 0.92),
    "purple": (0.52, 0.16, 0.72),
    "pink": (1.00, 0.50, 0.74),
    "brown": (0.46, 0.26, 0.10),
    "white": (0.96, 0.96, 0.96),
    "black": (0.06, 0.06, 0.07),
}
BACKGROUND_COLOURS: dict[str, RGB] = {
    "grey": (0.55, 0.55, 0.56),
    "dark grey": (0.27, 0.27, 0.29),
    "beige": (0.84, 0.77, 0.60),
    "dark blue": (0.10, 0.15, 0.38),
    "pale blue": (0.66, 0.80, 0.94),
    "dark green": (0.09, 0.27, 0.16),
    "pale green": (0.70, 0.88, 0.70),
    "dark red": (0.37, 0.09, 0.11),
    "pale pink": (0.95, 0.80, 0.83),
    "dark purple": (0.27, 0.13, 0.36),
}
LIGHTS: dict[str, tuple[float, float]] = {  # towards the lamp, x right, y down
    "left": (-0.95, -0.31),
    "right": (0.95, -0.31),
    "above": (0.0, -1.0),
}
# Values of the other attributes, each with the words that captions may have for it.
_SIZE = {"small": ("small", "little", "small"), "large": ("large", "big", "large")}
_SHAPE = {
    "circle": ("circle", "disc"),
    "square": ("square", "box"),
    "triangle": ("triangle",),
    "ring": ("ring", "hoop"),
    "star": ("star",),
    "cross": ("cross", "plus"),
}
_TEXTURE = {
    "smooth": ("smooth", "polished"),
    "cloudy": ("cloudy", "patchy"),
    "grainy": ("grainy", "speckled"),
    "striped": ("striped", "stripy"),
    "checkered": ("checkered", "checked"),
    "marbled": ("marbled", "veined"),
}
_RELATION = {
    "left": ("left of", "to the left of", "on the left of"),
    "right": ("right of", "to the right of", "on the right of"),
    "above": ("above", "over", "on top of"),
    "below": ("below", "under", "beneath"),
}
_KIND = {
    "plain": ("plain", "flat"),
    "gradient": ("gradient", "fading"),
    "cloudy": ("cloudy", "misty"),
    "woven": ("woven", "fabric"),
    "sandy": ("sandy", "gritty"),
}
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
    """Everything a caption can say about one scene.

    objects: one or two; relation: where the first stands from the second, a value of RELATIONS,
    None with one object; background_kind, background_colour, light: values of BACKGROUND_KINDS,
    BACKGROUND_COLOURS, LIGHTS.
    """

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
_LIGHT = {
    "left": ("lit from the left", "with light from the left"),
    "right": ("lit from the right", "with light from the right"),
    "above": ("lit from above", "with light from above"),
}
_LEAD = ("", "", "a picture of", "an image of", "there is")
_TABLES = (_SIZE, _SHAPE, _TEXTURE, _RELATION, _KIND, _LIGHT)
_LISTS = (_SURFACE, _PLACE, _GROUND, _LEAD)
_FIXED = ("a with ,",)
_DRAWS = 24  # uniforms a caption takes, always all of them, so that a template is reproducible


def describe(spec: SceneSpec, rng: np.random.Generator) -> str:
    """Writes one caption of the scene, lower case, about 9 to 26 words (commas are not counted).

    The template and synonyms depend on `rng` alone: captions of two specs with equal object counts
    and equal generators differ only in the attributes that differ.
    """
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
