"""Words of a command line and descriptions of parts: one parser each, the same in all commands."""

import pytest

from bench.config.describe import label, labels, read
from bench.config.words import apart, given, pairs
from bench.data.errors import ConfigError
from bench.run.outcome import blamed
from decoders.compose import DecoderSpec, PartSpec

RULE = PartSpec("decoders.verify.lantern.Lantern", {"k": 100, "delta": 0.2, "pins": [0] * 9})


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (["toleranse=1"], "unknown setting of compare 'toleranse'; did you mean 'tolerance'"),
        (["out"], "expected out=VALUE, found 'out'"),
        (["out=a", "out=b"], "out is given twice"),
    ],
)
def test_every_command_answers_a_wrong_setting_in_the_same_words(words, says):
    with pytest.raises(ConfigError, match=says):
        given(words, ("tolerance", "out"), "compare")
    assert given(["out=a=b"], ("out",), "compare") == {"out": "a=b"}
    assert apart(["study=x", "out=y"], ("out",)) == (["out=y"], ["study=x"])


def test_a_description_of_a_part_can_be_read_again():
    text = label(RULE)
    assert text == "lantern(k=100, delta=0.2, pins=[9 items])" and label(None) == "none"
    rule = read(text)
    assert (rule.name, rule.number("k"), rule.number("delta")) == ("lantern", 100.0, 0.2)
    assert rule.number("tau") is None and read("").name == "none"
    assert pairs("draft=tensor, forward=kernel, big") == {
        "draft": "tensor", "forward": "kernel", "big": "big",
    }  # fmt: skip


def test_all_parts_of_a_decoder_are_described_and_blamed():
    loop = PartSpec("decoders.loops.speculative.Speculative", {})
    spec = DecoderSpec("mine", loop, proposer=PartSpec("my_part:Window", {}), acceptance=RULE)
    assert labels(spec, None)["acceptance"] == label(RULE)
    assert labels(spec, None)["drafter"] == "window", "a proposer drafts by itself"
    assert blamed("ValueError: x", spec) == "ValueError: x (with my_part:Window)"
