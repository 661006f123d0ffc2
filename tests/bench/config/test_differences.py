"""A folder of another configuration is refused in the words that a user wrote."""

import json

import pytest

from bench.config.compose import compose_study
from bench.config.differences import differences

STUDY = ("study=main", "backend.threads=2")


def told(*words: str, old: tuple[str, ...] = ()) -> str:
    """What is said where `old` made the folder and `words` are asked for, both over `STUDY`."""
    there, wanted = (compose_study([*STUDY, *more]).measured() for more in (old, words))
    return differences(json.loads(json.dumps(there)), wanted)


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        (("latency.prompts=20",), "latency.prompts: 40 in the folder, 20 asked for"),
        (("seed=3", "keep_images=false"), "seed: 0 in the folder, 3 asked for; "
         "keep_images: true in the folder, false asked for"),
        (("model=llamagen_xl_256",), "model: tiny in the folder, llamagen_xl_256 asked for"),
        (("decoders=[ar,eagle2]", "acceptance=lantern"), None),
    ],
)  # fmt: skip
def test_settings_are_named_as_they_are_written(words, expected):
    if expected is not None:
        assert told(*words) == expected
        return
    said = told(*words)
    assert "acceptance._target_ (eagle2): decoders.verify.exact" in said
    assert "decoders: sd_chain, eagle1, lantern" in said and "in the folder only" in said
    assert "kwargs" not in said and ".spec." not in said


def test_a_setting_of_several_decoders_is_said_once_with_their_names():
    said = told("tree.depth=4", "decoders=[eagle2,lantern]", old=("decoders=[eagle2,lantern]",))
    assert said == "tree.depth (eagle2, lantern): 5 in the folder, 4 asked for"


def test_what_one_side_lacks_and_the_order_of_decoders_are_said():
    assert "temperature (ar): null in the folder, 0.0 asked for" in told(
        "sampling.temperature=0", "decoders=[ar]", old=("decoders=[ar]",)
    )
    said = told("decoders=[eagle2,ar]", old=("decoders=[ar,eagle2]",))
    assert said == "decoders: in another order, ar, eagle2 in the folder"
    assert differences({"cpu": "a"}, {"cpu": "a", "gpu": "b"}, ("there", "here")) == (
        "gpu: not set there, b here"
    )
