"""Cached text features: what a file may look like, and that it equals the live encoder."""

import json

import pytest
import torch
from safetensors.torch import save_file

from decoders.api import DecoderError, NumericalError
from decoders.models.llamagen import LabelEncoder
from decoders.models.text.features import FeatureCache
from decoders.models.text.t5 import T5Encoder
from tests.decoders.models.made.t5 import save_t5

PROMPTS = ["a red cube", "a blue ring on a red cube", "a ring", "a red cube"]


def example(rows=3, length=5, width=4):
    """Left-padded features and mask; row r has r + 1 valid positions."""
    count = torch.arange(1, rows + 1)[:, None]
    mask = torch.arange(length) >= length - count  # [n, P]
    features = torch.randn(rows, length, width, generator=torch.Generator().manual_seed(0))
    return features.masked_fill(~mask[..., None], 0), mask


def save(path, features, mask, metadata=None, **tensors):
    save_file({"features": features, "mask": mask, **tensors}, path, metadata)
    return path


def test_a_cache_equals_the_live_encoder_bit_for_bit(tmp_path):
    live = T5Encoder(str(save_t5(tmp_path / "t5")), length=12, dtype=torch.bfloat16)
    text, metadata = live.encode(PROMPTS), {"prompt": json.dumps(PROMPTS)}
    features = text.features.bfloat16()
    cache = FeatureCache(save(tmp_path / "f.safetensors", features, text.mask, metadata))
    assert cache.prompts == PROMPTS and cache.named
    for batch in (PROMPTS, PROMPTS[2:3], PROMPTS[1:3]):
        made, wanted = cache.encode(batch), live.encode(batch)
        assert made.features.dtype == wanted.features.dtype == torch.float32
        assert torch.equal(made.features, wanted.features) and torch.equal(made.mask, wanted.mask)


@pytest.mark.parametrize("feature", [torch.float32, torch.bfloat16, torch.float16, torch.float64])
@pytest.mark.parametrize("kind", [torch.bool, torch.int64, torch.uint8, torch.float32])
def test_files_of_other_programs(tmp_path, feature, kind):
    features, mask = example()
    cache = FeatureCache(save(tmp_path / "f.safetensors", features.to(feature), mask.to(kind)))
    assert cache.prompts == ["features:00000", "features:00001", "features:00002"]
    made = cache.encode(["features:00002", "features:00000"])
    assert torch.equal(made.features, features.to(feature).float()[[2, 0]])
    assert torch.equal(made.mask, mask[[2, 0]]) and made.mask.dtype == torch.bool


def test_right_padded_rows_are_rolled_and_said(tmp_path, caplog):
    features, mask = example(3, 3)
    right, right_mask = features.clone(), mask.clone()
    right[1], right_mask[1] = features[1].roll(-1, 0), mask[1].roll(-1)
    right[1, 2] = 9.0  # what stands on the padding must not matter
    made = FeatureCache(save(tmp_path / "f.safetensors", right, right_mask))
    text = made.encode(made.prompts)
    assert torch.equal(text.features, features) and torch.equal(text.mask, mask)
    assert "1 of 3 rows are padded on the right" in caplog.text
    moved = made.to("meta")
    assert moved.encode(made.prompts).features.device.type == "meta"
    assert torch.equal(made.encode(made.prompts).features, features)  # still where it was
    assert len(caplog.records) == 1  # moving it says nothing again


def padded(*row):
    return {"features": torch.randn(2, 3, 4), "mask": torch.tensor([[0, 1, 1], row])}


@pytest.mark.parametrize(
    ("tensors", "metadata", "expected"),
    [
        ({"features": torch.zeros(2, 3, 4)}, None, "expected tensors `features` and `mask`"),
        ({"features": torch.zeros(2, 3), "mask": torch.ones(2, 3)}, None, r"found \[2, 3\]"),
        ({"features": torch.zeros(2, 3, 4), "mask": torch.ones(2, 4)}, None, r"and \[2, 4\]"),
        ({"features": torch.ones(2, 3, 4).int(), "mask": torch.ones(2, 3)}, None, "float"),
        *((padded(*row), None, "row 1 of the mask") for row in ([0, 0, 0], [1, 0, 1], [0, 1, 0])),
        ({}, {"prompt": '["one"]'}, "JSON list of 2 texts"),
        ({}, {"prompt": "not json"}, "JSON list of 2 texts"),
        ({"prompt": torch.zeros(3, 4, dtype=torch.uint8)}, None, r"`prompt` \[2, bytes\]"),
        ({"prompt": torch.full((2, 4), 255, dtype=torch.uint8)}, None, "not UTF-8"),
        ({}, {"prompt": '["same", "same"]'}, "rows 0 and 1 have the same prompt"),
    ],
)
def test_bad_files_are_explained(tmp_path, tensors, metadata, expected):
    features = torch.arange(24.0).view(2, 3, 4)
    whole = tensors if "features" in tensors else {"features": features, "mask": torch.ones(2, 3)}
    path = tmp_path / "f.safetensors"
    save_file({**whole, **tensors}, path, metadata)
    with pytest.raises(DecoderError, match=expected):
        FeatureCache(path)
    save_file({name: torch.zeros(1) for name in "hgfedcba"}, path, {"text": '["one"]'})
    with pytest.raises(DecoderError, match="'a', 'b', 'c', 'd', 'e', 'f', 'g', 'h'"):
        FeatureCache(path)  # in order


def test_missing_truncated_and_unknown(tmp_path):
    path, (features, mask) = tmp_path / "f.safetensors", example()
    with pytest.raises(DecoderError, match="no feature file"):
        FeatureCache(path)
    features[2, -1, 0] = torch.nan
    save(path, features, mask, {"prompt": json.dumps(["a red cat", "a dog", "a bird"])})
    cache = FeatureCache(path)
    for read in (cache.encode, cache.check):
        with pytest.raises(DecoderError, match="did you mean 'a red cat'"):
            read(["a red bat"])
    with pytest.raises(DecoderError, match="no prompts"):
        cache.encode([])
    assert cache.encode(["a dog"]).batch == 1
    with pytest.raises(NumericalError, match="row 2"):
        cache.encode(["a dog", "a bird"])
    (tmp_path / "cut.safetensors").write_bytes(path.read_bytes()[:100])
    with pytest.raises(DecoderError, match="cannot be read"):
        FeatureCache(tmp_path / "cut.safetensors")


def test_labels():
    text = LabelEncoder(1000).encode(["207", " 0 ", "999"])
    assert text.features.tolist() == [[207], [0], [999]] and text.features.dtype == torch.int64
    assert text.mask.all() and text.mask.shape == (3, 1)
    for bad in ("1000", "-1", "cat", "", "1.5", "²"):
        with pytest.raises(DecoderError, match="from 0 to 999"):
            LabelEncoder(1000).encode(["1", bad])
    with pytest.raises(DecoderError, match="no prompts"):
        LabelEncoder().encode([])
