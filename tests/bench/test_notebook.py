"""`bench.notebook`, by the page that explains it."""

import io
import json
import multiprocessing
import re
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import torch
from PIL import Image

from bench.config.compose import compose_study
from bench.errors import ConfigError
from bench.notebook import ONE_AT_A_TIME, Decoded, _built, decode
from bench.report.page import COLORS
from decoders.api import CodeKind, DecoderError
from tests.bench.report.synthetic import DECODERS, write_run
from tests.tiny import short

ROOT = Path(__file__).parents[2]


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    """One thread, as two wait for each other where another test has one of two cores."""
    monkeypatch.setattr("decoders.tiny.bundle.load", short.load)
    monkeypatch.setattr(
        "bench.notebook.compose_study", lambda words: compose_study([*words, "backend.threads=1"])
    )


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    made = tmp_path_factory.mktemp("notebook") / "run"
    return write_run(made, DECODERS[:4], prompts=3)


@pytest.mark.filterwarnings("ignore:.*fork")
def test_a_process_forked_after_decoding_is_told_to_use_spawn() -> None:
    """Though another thread was decoding at the time of the fork."""
    decode("a red circle")
    with ONE_AT_A_TIME, multiprocessing.get_context("fork").Pool(1) as pool:
        found = pool.apply_async(decode, ("a red circle",))
        with pytest.raises(ConfigError, match=r"forked after its parent .* spawn"):
            found.get(100)


def test_images_decoded_in_several_threads_are_those_decoded_alone() -> None:
    """As in a web application or a pool of threads; the first calls load the model."""
    _built.cache_clear()
    with ThreadPoolExecutor(3) as pool:
        found = [pool.submit(decode, "a red circle", "sd_chain", seed=seed) for seed in (1, 2, 1)]
        codes = [one.result(100).codes for one in found]
    assert torch.equal(codes[0], codes[2]) and not torch.equal(codes[0], codes[1])
    assert torch.equal(codes[1], decode("a red circle", "sd_chain", seed=2).codes)


def test_a_seed_that_no_run_takes_is_refused() -> None:
    with pytest.raises(DecoderError, match=r"seed: .*greater than or equal to 0, found -1"):
        decode("a red circle", seed=-1)


def test_an_image_shows_its_codes_per_forward_and_a_setting_its_place() -> None:
    one = decode("a red circle", overrides="sampling.temperature=0")
    assert repr(one).startswith("Decoded(ar: 'a red circle', 1.00 codes per forward, ")
    for given, place in (
        ({"tree": "chain"}, '"tree=chain"'),
        ({"lam": 5}, '"acceptance.lam=5"'),
        (
            {"temperature": 0, "execution": "eager"},
            '"sampling.temperature=0", "backend.execution=eager"',
        ),
        ({"top_k": 9}, '"sampling.top_k=9" or "tree.top_k=9"'),
    ):
        with pytest.raises(TypeError) as refused:
            decode("a red circle", "lantern_pp", **given)
        assert f"decode(overrides=[{place}])" in str(refused.value)


@contextmanager
def default_dtype(dtype: torch.dtype) -> Iterator[None]:
    torch.set_default_dtype(dtype)
    try:
        yield
    finally:
        torch.set_default_dtype(torch.float32)


@contextmanager
def default_device(name: str) -> Iterator[None]:
    torch.set_default_device(name)
    try:
        yield
    finally:
        torch.set_default_device(None)


OWN: dict[str, Callable[[], Any]] = {
    "float64": lambda: default_dtype(torch.float64),
    "bfloat16": lambda: default_dtype(torch.bfloat16),
    "device": lambda: default_device("meta"),
    "with a device": lambda: torch.device("meta"),
    "autocast": lambda: torch.autocast("cpu", torch.bfloat16),
    "no gradients": torch.no_grad,
    "inference": torch.inference_mode,
}


@cache
def plain() -> Decoded:
    return decode("a red circle", "sd_chain", seed=3)


@pytest.mark.parametrize("name", OWN)
def test_what_a_notebook_has_set_for_its_own_work_gives_no_other_codes(name: str) -> None:
    """Neither at the first call, which builds the decoder, nor at a later one."""
    wanted = plain()
    _built.cache_clear()
    with OWN[name]():
        before = torch.get_default_dtype(), torch.get_default_device()
        found = [decode("a red circle", "sd_chain", seed=3) for _ in range(2)]
        assert (torch.get_default_dtype(), torch.get_default_device()) == before
    _built.cache_clear()
    for one in found:
        assert torch.equal(one.codes, wanted.codes) and one.mal == wanted.mal


def test_an_image_is_shown_beside_how_its_codes_came_to_be() -> None:
    one = decode("a red circle", "sd_chain")
    assert one.image is not None
    shown, side = one.show(), one.image.width
    assert shown.size == (2 * side, side)
    assert shown.crop((0, 0, side, side)).tobytes() == one.image.tobytes()
    corner = COLORS[int(one.trace.kind[0, 0])].tolist()  # the first code, drawn from the target
    assert list(shown.getpixel((side + 1, 1))) == corner == [190, 190, 190]


@pytest.mark.slow
def test_the_block_of_the_page_and_the_cells_of_the_example_run(run: Path) -> None:
    cells = json.loads((ROOT / "docs/example.ipynb").read_text())["cells"]
    code = ["".join(cell["source"]) for cell in cells if cell["cell_type"] == "code"]
    running = (ROOT / "docs/running.md").read_text()
    code += re.findall(r"^```python\n(.*?)^```$", running, re.M | re.S)
    names: dict[str, Any] = {}
    for part in code:
        exec(re.sub(r"(\.\./)?results/tables/main_avx512", str(run), part), names)
    assert torch.equal(names["ar"].codes, names["chain"].codes)
    one = names["one"]
    exact = decode("a red circle", "lantern_pp", seed=1, overrides=["acceptance.lam=1"])
    assert torch.equal(one.codes, names["images"]["lantern_pp"].codes)
    assert one.codes.shape == (256,) and one.trace.tree_nodes == 8, "the tree of study=main"
    assert one.mal == pytest.approx(255 / int(one.trace.target_calls[0]))
    assert names["relaxed"].any() and not (exact.trace.kind == CodeKind.RELAXED).any()
    assert one.mal > exact.mal > 1
    assert Image.open(io.BytesIO(one._repr_png_())).size == one.image.size
    assert [*names["table"]["decoder"]][:2] == ["ar", "AR reseed, seed 1"]
    assert set(names["per_image"]["decoder"]) == {"ar", "sd_chain", "eagle1", "eagle2"}
