"""The committed embedded models: whole, checksummed, decodable, and EAGLE-2 is exact on one."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch

from decoders.api import DecoderError, ImageModel, Sampling
from decoders.propose.drafters.eagle import Eagle
from decoders.propose.trees.dynamic import Dynamic
from decoders.tiny import bundle
from tests.decoders.compositions import drafting, images

PROMPT = "a large smooth red circle on a plain white background"


@pytest.fixture(scope="module")
def model() -> ImageModel:
    return bundle.load(dtype="float32")


def test_greedy_eagle2_draws_the_likeliest_code_everywhere(model: ImageModel) -> None:
    sampling = Sampling(temperature=0, cfg=model.sampling.cfg)
    text, tree = model.text.encode([PROMPT]), Dynamic(depth=4, top_k=4, nodes=12)
    fast = images(drafting(model, Eagle(model), tree, sampling=sampling), [PROMPT])
    assert int(fast.trace.target_calls) < 255 / 1.5
    target: Any = model.target
    with_caption, without = (
        target.logits(target.hidden_states(text, fast.codes, torch.tensor([drop])))[:, -256:]
        for drop in (False, True)
    )  # [1, L, V] each
    guided = without + sampling.cfg * (with_caption - without)
    behind = guided.amax(-1) - guided.gather(-1, fast.codes[..., None])[..., 0]
    assert float(behind.max()) < 1e-3
    pictures = model.tokenizer.decode(fast.codes)
    assert pictures.shape == (1, 3, 64, 64)
    assert float(pictures.min()) >= 0 and float(pictures.max()) <= 1


@pytest.mark.parametrize(
    ("prompt", "says"),
    [
        ("", "empty prompt"),
        ("   ", "empty prompt"),
        ("ein roter Kreis", "never saw"),
        ("赤い丸", "never saw"),
        ("a red circle " * 20, "at most 32 fit"),
        ("a large rad circle", "'rad'; did you mean "),
    ],
)
def test_bad_prompts_are_refused(model: ImageModel, prompt: str, says: str) -> None:
    with pytest.raises(DecoderError, match=says):
        model.text.encode([prompt])


def test_the_shipped_weights_belong_together() -> None:
    for target in ("target", "plain"):
        folder = (
            bundle.WEIGHTS_FOLDER / "targets" if target in bundle.TARGETS else bundle.WEIGHTS_FOLDER
        )
        card = json.loads((folder / bundle.CARD_FILE).read_text())
        assert {"vq", "text", target} <= card.keys()
        bundle.check_together(folder, card, [part for part in card if part in bundle.TRAINED_WITH])


@pytest.mark.parametrize(
    ("part", "says"),
    [
        ("vq", r"text was trained with vq 7687\w+, found vq 1+.*stages=.target. weights="),
        ("target", r"text was trained with target"),
        ("text", r"target was trained with text"),
    ],
)
def test_a_part_that_alone_was_trained_again_is_refused(
    tmp_path: Path, part: str, says: str
) -> None:
    card = json.loads((bundle.WEIGHTS_FOLDER / bundle.CARD_FILE).read_text())
    card[part]["sha256"] = "1" * 64
    (tmp_path / bundle.CARD_FILE).write_text(json.dumps(card))
    with pytest.raises(DecoderError, match=says):
        bundle.load(checkpoint=str(tmp_path))
