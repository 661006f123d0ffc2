"""Names of decoders are names of files, also where a file system ignores case and accents' form."""

import pytest

from bench.config.compose import compose_study
from bench.errors import ConfigError


def entries(*names: str) -> str:
    each = [f'{{decoder: ar, name: "{name}"}}' for name in names]
    return f"decoders=[{', '.join(each)}]"


@pytest.mark.parametrize(
    "names", [("ar_T", "ar_t"), ("Ä", "a\u0308"), ("groß", "GROSS"), ("ar", "ar"), ("Σ", "ς")]
)
def test_names_that_may_be_one_file_are_refused_before_anything_is_decoded(names):
    with pytest.raises(ConfigError, match="decoders named twice"):
        compose_study(["study=smoke", entries(*names)])


def test_other_names_are_not():
    study = compose_study(["study=smoke", entries("ar_T", "ar_t0", "é", "e")])
    assert [entry.name for entry in study.decoders] == ["ar_T", "ar_t0", "é", "e"]
