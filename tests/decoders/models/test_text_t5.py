"""Caption features of a T5 encoder: LlamaGen's cleaning, length and padding; on a tiny T5."""

import logging

import pytest
import torch
from safetensors.torch import load_file, save_file

from decoders.api import DecoderError
from decoders.models.t5 import T5Encoder, clean
from tests.checkpoints import write_t5

CAPTIONS = ["a red cube", "A blue ring on a red cube.", "a ring"]


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return write_t5(tmp_path_factory.mktemp("t5"))


def encoder(folder, length=10, **settings):
    return T5Encoder(str(folder), length=length, dtype=torch.float32, **settings)


def by_hand(folder, words, length):
    """Features of one caption without any padding at all: [tokens, F]."""
    from transformers import AutoTokenizer, T5EncoderModel

    ids = AutoTokenizer.from_pretrained(folder)(words, return_tensors="pt")["input_ids"][:, :length]
    with torch.no_grad():
        return T5EncoderModel.from_pretrained(folder).eval()(ids).last_hidden_state[0]


def test_features_stand_at_the_right_end_and_are_zero_before(folder):
    live = encoder(folder)
    text = live.encode(CAPTIONS)
    assert set(live.sha256()) == {"text/model.safetensors", "text/tokenizer.json"}
    assert text.features.shape == (3, 10, 16) and text.features.dtype == torch.float32
    assert text.mask.sum(1).tolist() == [4, 9, 3], "words, punctuation and the end token"
    for row, caption in enumerate(CAPTIONS):
        count = int(text.mask[row].sum())
        assert text.mask[row, -count:].all() and not text.features[row, :-count].any()
        wanted = by_hand(folder, caption.lower(), 10)
        torch.testing.assert_close(text.features[row, -count:], wanted, rtol=1e-4, atol=1e-5)
        assert torch.equal(live.encode([caption]).features[0], text.features[row])  # alone


def test_a_long_prompt_is_cut_with_one_warning(folder, caplog):
    live, long = encoder(folder, length=5), "a red cube a blue ring"
    with caplog.at_level(logging.WARNING):
        live.check([long])
        text = live.encode([long])
    assert [r.levelname for r in caplog.records] == ["WARNING"]
    assert "cut at 5 tokens" in caplog.text
    assert text.mask.all()
    end = by_hand(folder, "a red cube a", 5)  # the end token is kept
    torch.testing.assert_close(text.features[0], end, rtol=1e-4, atol=1e-5)


def test_an_incomplete_folder_says_what_to_download(tmp_path):
    live = T5Encoder(str(tmp_path / "missing"))  # nothing is read before the first prompt
    with pytest.raises(DecoderError, match="no T5 text encoder"):
        live.encode(["a cat"])
    for gone, expected in {
        "model.safetensors": "no T5 text encoder in .*: expected model.safetensors or",
        "tokenizer.json": "cannot be read.*Download config.json, tokenizer.json.*google/flan-t5-xl",
        "config.json": "cannot be read.*Download config.json",
    }.items():
        (write_t5(tmp_path / gone) / gone).unlink()
        with pytest.raises(DecoderError, match=expected):
            T5Encoder(str(tmp_path / gone)).check(["a cat"])
    path = write_t5(tmp_path / "part") / "model.safetensors"
    tensors = load_file(path)
    del tensors["encoder.block.0.layer.0.SelfAttention.q.weight"]
    save_file(tensors, path, {"format": "pt"})
    with pytest.raises(DecoderError, match=r"is no T5EncoderModel: missing .*q\.weight"):
        T5Encoder(str(tmp_path / "part")).encode(["a cat"])


# Right-hand sides: what the cleaning of LlamaGen's release makes of them.
@pytest.mark.parametrize(
    ("caption", "cleaned"),
    [
        ("A Red CUBE. ", "a red cube."),
        ("see http://x.com/a <b>bold</b> &amp; [nice]", "see bold nice"),
        ("“Quoted” — \u2018text\u2019", "quoted\" - 'text"),
        ("cat@home photo_01.png 123456789 10x20", "cat"),
        ("a-b-c-d-e free shipping!", "a b c d e !"),
        ("a man,a dog", "a man, a dog"),
        ("50%20off", "50 off"),
        ("<script>x</script>猫 a cat", "a cat"),
        ("#12", ""),
    ],
)
def test_cleaning(caption, cleaned):
    assert clean(caption) == cleaned


def test_a_caption_is_encoded_once_for_all_rows_and_runs(folder, tmp_path, monkeypatch):
    """Later ones read what was kept, and do not even load the encoder."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    first = encoder(folder)
    wanted = first.encode(CAPTIONS)
    assert len([*tmp_path.rglob("*.safetensors")]) == 3
    later = encoder(folder)
    again = later.encode([*CAPTIONS[::-1], "a  RED cube"])  # the last is the first when cleaned
    assert "encoder" not in vars(later)
    assert torch.equal(again.features, wanted.features[[2, 1, 0, 0]])
    assert torch.equal(again.mask, wanted.mask[[2, 1, 0, 0]])
    other = encoder(folder, length=9)  # another setting is another folder
    other.encode(CAPTIONS[:1])
    assert "encoder" in vars(other)
