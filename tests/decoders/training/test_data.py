"""Data of a training: where codes come from, and the shards of the target's states."""

import json
from collections import Counter
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from decoders.api import DecoderError
from decoders.models.small import random_model
from decoders.models.vq.llamagen_vq import LlamaGenVQ, VQConfig
from decoders.models.vq.tokenizer import VQTokenizer
from decoders.tiny.scenes.source import Scenes
from decoders.training.sources import Listed, pictures
from decoders.training.states import DataConfig, Images, StateData, target_states, transformer_of

MODEL = random_model(vocab=24, grid=3)
TARGET = transformer_of(MODEL)
COMPUTED: list[int] = []


def images_of(numbers: list[int]) -> Images:
    """Image n begins with the codes of n in base 24, so that it can be told."""
    COMPUTED.extend(numbers)
    codes = torch.tensor([[n // 24, n % 24] + [0] * 7 for n in numbers])
    return Images(MODEL.text.encode([f"p{n}" for n in numbers]), codes)


def data(count: int = 40, paired: bool = True, batch: int = 4, **settings: object) -> StateData:
    chosen: dict[str, object] = {"shard": 8, "reuse": 2.0, "chunk": 3} | settings
    config = DataConfig(**chosen)  # type: ignore[arg-type]
    return StateData(TARGET, Listed(count, 0.1, 0, images_of), paired, config, batch)


def drawn(states: StateData, step: int) -> list[int]:
    """The numbers of the images of a step's batch."""
    codes = states.at(step).images.codes
    return (24 * codes[:, 0] + codes[:, 1]).tolist()


def with_vq() -> object:
    shape = VQConfig(
        codes=24, dim=4, channels=8, ch_mult=(1, 2), res_blocks=1, z_channels=8, grid=4
    )
    torch.manual_seed(0)
    model = random_model(vocab=24, grid=4)
    return replace(model, tokenizer=VQTokenizer(LlamaGenVQ(shape).eval().requires_grad_(False)))


def test_pictures_of_a_folder_become_codes(tmp_path: Path) -> None:
    random = np.random.default_rng(0)
    rows = []
    for i, size in enumerate([(8, 8), (24, 12), (9, 30)]):
        array = random.integers(0, 255, (*size, 3), dtype=np.uint8)
        Image.fromarray(array).save(tmp_path / f"{i}.png")
        rows.append({"image": f"{i}.png", "caption": f"caption {i}"})
    (tmp_path / "captions.json").write_text(json.dumps(rows))
    model = with_vq()
    one = pictures(model, str(tmp_path), str(tmp_path / "captions.json"), 8, 0.3)  # type: ignore
    assert one.images("train", range(2)).codes.shape == (2, 16)
    exact = next(k for k, n in enumerate(one.parts["train"] + one.parts["valid"]) if n == 0)
    array = np.asarray(Image.open(tmp_path / "0.png"), dtype=np.float32) / 255
    picture = torch.from_numpy(array).permute(2, 0, 1)[None]
    expected = model.tokenizer.vq.encode(picture)  # type: ignore[attr-defined]
    split, at = ("train", exact) if exact < 2 else ("valid", exact - 2)
    assert torch.equal(one.images(split, [at]).codes, expected)


def test_bad_captions_and_pictures_are_refused(tmp_path: Path) -> None:
    Image.new("RGB", (8, 8)).save(tmp_path / "0.png")
    path = tmp_path / "captions.json"
    for text, says in (
        (None, r"does not exist; set data\.captions"),
        ('[{"image": "x.png", "caption": "a"}]', r"row 1 names .*x\.png"),
        ('[{"image": "0.png"}]', "row 1 needs `image` and `caption`"),
        ('[{"image": "._0.png", "caption": "a"}]', "a dot are of hidden files"),
    ):
        if text is not None:
            path.write_text(text)
        with pytest.raises(DecoderError, match=says):
            pictures(MODEL, str(tmp_path), str(path), 8)
    with pytest.raises(DecoderError, match=r"cannot encode pictures.*data\._target_="):
        Scenes(MODEL).images("train", [0])
    with pytest.raises(DecoderError, match="pictures of 64 pixels are 1024 codes"):
        Scenes(with_vq()).images("train", [0])  # type: ignore[arg-type]


def test_paired_states_are_those_of_decoding_with_and_without_the_caption() -> None:
    images = images_of([1, 30])
    states = target_states(TARGET, images)
    assert states.copies == 2
    cache = TARGET.new_cache(4, TARGET.prefix)
    prefix = TARGET.prefill(images.text, 2, cache)
    torch.testing.assert_close(states.hidden[:, : TARGET.prefix], prefix, rtol=1e-4, atol=1e-5)
    single = target_states(TARGET, images, torch.tensor([True, False]))
    assert single.copies == 1
    torch.testing.assert_close(single.hidden[0], states.hidden[2])
    torch.testing.assert_close(single.hidden[1], states.hidden[1])


def test_a_tenth_of_single_rows_loses_its_caption_and_held_out_ones_none() -> None:
    states = data(count=220, paired=False, shard=180, batch=160, drop=0.1)
    states.held_paired = False
    assert 4 <= int(states.at(0).drop.sum()) <= 36
    assert not states.states("valid", range(20)).drop.any()


def test_a_batch_is_a_function_of_the_step() -> None:
    through = data()
    history = [drawn(through, step) for step in range(10)]
    for step in (9, 4):  # a run that starts in the middle
        assert drawn(data(), step) == history[step]
    states = through.at(9)
    torch.testing.assert_close(states.hidden, target_states(TARGET, states.images).hidden)


def test_images_are_used_reuse_times_and_computed_once() -> None:
    states = data(count=420, shard=12, reuse=3.0)
    COMPUTED.clear()
    counts = Counter(n for step in range(270) for n in drawn(states, step))
    assert max(Counter(COMPUTED).values()) == 1
    assert set(counts.values()) == {3}
    assert states.images(270) == len(COMPUTED) == len(counts)


def test_a_finite_source_is_gone_through_again() -> None:
    states = data(count=14, shard=8, reuse=1.0)  # 13 to train on
    assert len({n for step in range(4) for n in drawn(states, step)}) == 13
    held = data(reuse=1.0)
    codes = held.states("valid", range(4)).images.codes
    never = set((24 * codes[:, 0] + codes[:, 1]).tolist())
    assert not never & {n for step in range(18) for n in drawn(held, step)}
