"""What a scene is made of: the attribute vocabulary, and the specification of one scene.

Why: captions, rendering and the alignment test (counterfactual captions) must agree on one list
of values. Colours are RGB in [0, 1], chosen to stay apart under shading.
"""

import math
from dataclasses import dataclass

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
SHAPES = ("circle", "square", "triangle", "ring", "star", "cross")
TEXTURES = ("smooth", "cloudy", "grainy", "striped", "checkered", "marbled")
SIZES = ("small", "large")
RELATIONS = ("left", "right", "above", "below")
BACKGROUND_KINDS = ("plain", "gradient", "cloudy", "woven", "sandy")
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
ATTRIBUTES = ("colour", "shape", "texture", "relation", "size", "background")
MIN_CONTRAST = 0.42  # least RGB distance between an object and its background


@dataclass(frozen=True)
class ObjectSpec:
    """One object: a value of SIZES, TEXTURES, COLOURS and SHAPES each."""

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

    def __post_init__(self) -> None:
        """Raise ValueError when the objects and the relation do not fit together."""
        if len(self.objects) not in (1, 2):
            raise ValueError(f"a scene has one or two objects, found {len(self.objects)}")
        if (self.relation is None) != (len(self.objects) == 1):
            raise ValueError(
                "two objects need a relation and one object has none, found "
                f"{len(self.objects)} object(s) and relation {self.relation!r}"
            )


def separable(colour: str, background_colour: str) -> bool:
    """Whether an object of this colour stands out from a background of that colour."""
    return math.dist(COLOURS[colour], BACKGROUND_COLOURS[background_colour]) >= MIN_CONTRAST
