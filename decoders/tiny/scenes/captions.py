"""The caption grammar: from a scene's attributes to varied lower-case English.

Why: synonyms and word orders make the text condition a real one while the vocabulary stays
small enough for word-level tokens. Every attribute but the light is always said, so that
changing one attribute always changes the words.
"""

from collections.abc import Callable, Sequence

import numpy as np

from decoders.tiny.scenes import attributes as at

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
_SURFACE = ("surface", "texture", "finish")
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

Pick = Callable[[Sequence[str]], str]


def describe(spec: at.SceneSpec, rng: np.random.Generator) -> str:
    """One caption of the scene, lower case, about 9 to 26 words (commas are not counted).

    The template and synonyms depend on `rng` alone: two specs with equal object counts described
    with equal generators differ only in the words of the attributes that differ.
    """
    uniforms = iter(rng.random(_DRAWS).tolist())

    def pick(options: Sequence[str]) -> str:
        return options[int(next(uniforms) * len(options))]

    single = len(spec.objects) == 1  # two objects take the shorter forms
    order, say_light = next(uniforms), next(uniforms) < (0.7 if single else 0.4)
    things = [_noun_phrase(thing, pick, single) for thing in spec.objects]
    body = things[0]
    if spec.relation is not None:
        body = f"{things[0]} {pick(_RELATION[spec.relation])} {things[1]}"
    ground = _background_phrase(spec, pick)
    light, lead = pick(_LIGHT[spec.light]), pick(_LEAD if single else _LEAD[:1])
    if order < 0.75:
        text = f"{lead} {body} {ground}" + (f", {light}" if say_light else "")
    else:
        text = f"{ground}, {lead} {body}" + (f", {light}" if say_light else "")
    return " ".join(text.split())


def _noun_phrase(thing: at.ObjectSpec, pick: Pick, long_forms: bool) -> str:
    """`a small striped red ring` or `a small red ring with a striped surface`."""
    size, texture = pick(_SIZE[thing.size]), pick(_TEXTURE[thing.texture])
    shape, surface = pick(_SHAPE[thing.shape]), pick(_SURFACE)
    style = pick(("before", "before", "swapped", "after" if long_forms else "before"))
    if style == "before":
        return f"a {size} {texture} {thing.colour} {shape}"
    if style == "swapped":
        return f"a {size} {thing.colour} {texture} {shape}"
    return f"a {size} {thing.colour} {shape} with a {texture} {surface}"


def _background_phrase(spec: at.SceneSpec, pick: Pick) -> str:
    """`on a cloudy dark blue background`, in either order of the adjectives."""
    place, kind, ground = pick(_PLACE), pick(_KIND[spec.background_kind]), pick(_GROUND)
    pair = f"{kind} {spec.background_colour}", f"{spec.background_colour} {kind}"
    return f"{place} a {pick(pair)} {ground}"


def words(caption: str) -> list[str]:
    """The word-level tokens of a caption: lower case, a comma is its own token."""
    kept = "".join(c if c.isalnum() or c in ", " else " " for c in caption.lower())
    return kept.replace(",", " , ").split()


def vocabulary() -> list[str]:
    """Every token that a caption of `describe` can have, sorted, without repeats."""
    phrases = [*_FIXED, *at.COLOURS, *at.BACKGROUND_COLOURS]
    phrases += [option for table in _TABLES for options in table.values() for option in options]
    phrases += [option for options in _LISTS for option in options]
    return sorted({word for phrase in phrases for word in words(phrase)})
