"""The pages of the docs, their blocks of code, and the study of a page's own parts."""

import re
import shlex
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from bench.config.compose import compose_study
from bench.config.schema import DecoderVariant, StudyConfig, variants
from bench.gate import RealModel, check_decoder
from bench.store.facts import Verdict
from decoders.api import ImageModel
from tests.exact.specs import SMALL

ROOT = Path(__file__).parents[2]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]
BLOCK = re.compile(r"^```(\w*)\n(.*?)^```$", re.MULTILINE | re.DOTALL)


def blocks(page: Path, kind: str) -> list[str]:
    """The blocks of a language; of "" those of commands."""
    return [text for language, text in BLOCK.findall(page.read_text()) if language == kind]


@contextmanager
def written(folder: Path, files: dict[str, str], command: str) -> Iterator[StudyConfig]:
    """The study of a page's command, with the page's files in a folder of their own."""
    for name, text in files.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(text)
    words = shlex.split(command)
    assert words[:4] == ["python", "-m", "bench", "run"]
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(folder)
        yield compose_study([*words[4:], f"hydra.searchpath=[file://{folder}/conf]"])


def variant_of(study: StudyConfig, model: ImageModel, name: str) -> DecoderVariant:
    (mine,) = [one for one in variants(study, model.sampling) if one.name == name]
    return mine


def judged(variant: DecoderVariant, model: ImageModel) -> Verdict:
    return check_decoder(variant.entry.spec, variant.sampling, RealModel.of(model), SMALL)
