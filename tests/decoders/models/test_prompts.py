"""Prompts of Anole, Lumina-mGPT and Janus: templates, padding, unconditional rows, what is refused,
and what a tokenizer keeps of the program that saved it."""

import pytest
import torch
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers

from decoders.api import DecoderError
from decoders.models.chameleon import ANOLE, CODE_NAME, TOKENIZER_FILES, lumina_template
from decoders.models.janus import TEMPLATE
from decoders.models.loading.checkpoint import Checkpoint
from decoders.models.prompts import PromptEncoder, code_tokens
from tests import checkpoints as K

NAMES, TOKENS = K.vocabulary("chameleon"), K.tokens_of_codes("chameleon")[:-1]
PREFIX = 24


def ids(words: str) -> list[int]:
    return [NAMES[word] for word in words.split(" ")]


@pytest.fixture
def opened(tmp_path):
    K.write_tokenizer(tmp_path / "tokenizer.json", NAMES)
    return Checkpoint(tmp_path, {}, {})


def encoder(opened, kind: str = "anole", length: int = PREFIX, source: str | None = None):
    template = ANOLE if kind == "anole" else lumina_template(4)
    return PromptEncoder(opened, template, length, source, files=TOKENIZER_FILES, control=TOKENS)


SEP, BOI, SIZE = "<reserved08706>", "<racm3:break>", "<reserved08802>"
EXPECTED = {
    "anole": (f"<s> a red fox {SEP} {BOI}", f"<s> {BOI}"),
    "lumina": (
        "<s> Generate an image of 64 x 64 according to the following prompt : a red fox "
        f"{SEP} {BOI} {SIZE} {SIZE}",
        f"{BOI} {SIZE} {SIZE}",
    ),
}


@pytest.mark.parametrize("kind", EXPECTED)
def test_templates(opened, kind):
    made = encoder(opened, kind)
    text = made.encode(["a red fox", "snow"])
    conditional, unconditional = (ids(words) for words in EXPECTED[kind])
    assert text.features[0, -len(conditional) :].tolist() == conditional
    used = len(conditional)
    assert text.mask[0].tolist() == [False] * (PREFIX - used) + [True] * used
    assert int(text.mask[1].sum()) == len(conditional) - 2
    assert text.uncond is not None and text.uncond_mask is not None
    for row in range(2):
        assert text.uncond[row][text.uncond_mask[row]].tolist() == unconditional
        assert text.uncond_mask[row, -len(unconditional) :].all()
    assert text.features.dtype == torch.long


@pytest.mark.parametrize(
    ("prompts", "message"),
    [
        ([], "no prompts given"),
        (["  "], "empty prompt"),
        (["fox", ""], "empty prompt ''"),
        (["fox " * 22], r"25 tokens with its template, at most 24 fit.*model\.prefix"),
        ([f"a {SEP} fox"], "holds the control token"),
        ([f"{BOI} fox"], "holds the control token"),
        (["IMGIMGAZ fox"], "holds the control token"),
    ],
)
def test_prompts_it_cannot_read_are_refused(opened, prompts, message):
    with pytest.raises(DecoderError, match=message):
        encoder(opened).encode(prompts)


def test_a_missing_tokenizer_is_an_error_when_it_is_needed(tmp_path):
    opened = Checkpoint(tmp_path, {"vocabulary_map": NAMES}, {})
    codes = code_tokens(opened, None, CODE_NAME)  # without a prompt
    assert codes.tolist() == TOKENS
    with pytest.raises(DecoderError, match=r"no tokenizer in .*set model\.text"):
        encoder(opened).encode(["fox"])
    with pytest.raises(DecoderError, match="no tokenizer in"):
        code_tokens(Checkpoint(tmp_path, {}, {}), None, CODE_NAME)


@pytest.mark.parametrize("name", ["text_tokenizer.json", "tokenizer/text_tokenizer.json"])
def test_the_tokenizer_may_be_metas(tmp_path, name):
    path = tmp_path / "meta" / name
    K.write_tokenizer(path, NAMES)
    opened = Checkpoint(tmp_path, {}, {})
    expected = ids(f"<s> fox {SEP} {BOI}")
    for source in (path, tmp_path / "meta"):
        text = encoder(opened, source=str(source)).encode(["fox"])
        assert text.features[0, -4:].tolist() == expected


def byte_tokenizer(folder, template, added=(), change=lambda it: None):
    """A tokenizer of single bytes, with a template's tokens and added ones that are not special,
    changed before it is saved."""
    letters = sorted(pre_tokenizers.ByteLevel.alphabet())
    made = Tokenizer(models.BPE(vocab={c: i for i, c in enumerate(letters)}, merges=[]))
    made.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    made.decoder = decoders.ByteLevel()
    special = ["[END]", *template.before, template.pad or "<pad>", *template.after]
    made.add_special_tokens([name for name in special if name not in added])
    made.add_tokens([AddedToken(name, normalized=True, special=False) for name in added])
    change(made)
    made.save(str(folder / "tokenizer.json"))
    return PromptEncoder(Checkpoint(folder, {}, {}), template, 160), made


@pytest.mark.parametrize("template", [TEMPLATE, ANOLE], ids=["janus", "anole"])
def test_letters_that_a_tokenizer_adds_are_text_and_control_tokens_are_not(tmp_path, template):
    """DeepSeek's tokenizers, Janus's among them, list single letters among the added tokens, with
    "special": false; what is in angle brackets is a control token nevertheless."""
    encoder, made = byte_tokenizer(tmp_path, template, [*"øöúÿõ÷ûýÀùÁþü", "of", BOI])
    prompts = ["a street in Zürich", "a piñata in Málaga", "5 ÷ 2", "a bottle of rosé", "ÿ ø þ"]
    text = encoder.encode(prompts)
    words = " ".join(map(str, made.encode(prompts[0], add_special_tokens=False).ids))
    assert f" {words} " in " ".join(map(str, text.features[0][text.mask[0]].tolist()))
    for name in (*template.before, *template.after, BOI, "[END]"):
        with pytest.raises(DecoderError, match="holds the control token"):
            encoder.encode([f"a {name} fox"])


@pytest.mark.parametrize("kept", [True, False])
def test_white_space_around_a_prompt_is_as_the_authors_have_it(tmp_path, kept):
    """Chameleon's and Emu3's code passes it on, DeepSeek's strips it."""
    encoder, made = byte_tokenizer(tmp_path, lumina_template(4) if kept else TEMPLATE)
    text = encoder.encode([" a  cat. \n"])
    found = made.decode(text.features[0][text.mask[0]].tolist())
    assert (":\n a  cat. \n" in found) == kept and ("|>: a  cat.\n\n<|" in found) != kept


@pytest.mark.parametrize("template", [TEMPLATE, ANOLE], ids=["janus", "anole"])
@pytest.mark.parametrize("prompt", ["{prompt}", "a {stripped} b", "{stripped}{prompt} {0} \\\\1"])
def test_the_words_of_a_template_in_a_prompt_are_text(tmp_path, template, prompt):
    encoder, made = byte_tokenizer(tmp_path, template)
    text = encoder.encode([prompt])
    found = made.decode(text.features[0][text.mask[0]].tolist())
    assert found.count(prompt) == 1 and len(found) < len(prompt) + 60


SAVED = {
    "truncated": lambda it: it.enable_truncation(16),
    "truncated on the left": lambda it: it.enable_truncation(16, direction="left"),
    "padded": lambda it: it.enable_padding(length=96, pad_id=0, pad_token="!"),
    "truncated and padded": lambda it: (it.enable_truncation(16), it.enable_padding(length=64)),
}


@pytest.mark.parametrize("how", SAVED)
def test_a_prompt_is_neither_cut_nor_padded_by_the_settings_of_a_saved_tokenizer(how, tmp_path):
    prompt = "a red bus on a street near a long river"
    plain = byte_tokenizer(tmp_path, TEMPLATE)[0].encode([prompt])
    saved = byte_tokenizer(tmp_path, TEMPLATE, change=SAVED[how])[0].encode([prompt])
    assert int(plain.mask.sum()) > len(prompt)
    for name in ("features", "mask", "uncond"):
        assert torch.equal(getattr(plain, name), getattr(saved, name)), name
