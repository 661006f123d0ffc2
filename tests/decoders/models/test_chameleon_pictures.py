"""Chameleon's VQGAN in both layouts, and its codebook with a row end."""

import pytest
import torch
from safetensors.torch import save_file

from decoders.api import DecoderError
from decoders.models.pictures import CHAMELEON, config_from_tensors
from decoders.verify.lantern import neighbour_table
from tests.decoders.models import chameleon_checkpoint as C

SIDE = 2 * C.GRID


@pytest.fixture(scope="module")
def bare(hf, tmp_path_factory):
    """As transformers saves it: without the VQGAN's decoder."""
    return C.write_checkpoint(tmp_path_factory.mktemp("bare"), hf, decoder=False)


def write_vqgan(path, hf):
    path.parent.mkdir(parents=True, exist_ok=True)
    torch.save({"state_dict": C.vqgan_tensors(hf)}, path)
    return path


def some_codes(batch: int = 2) -> torch.Tensor:
    generator = torch.Generator().manual_seed(4)
    return torch.randint(C.CODES, (batch, C.GRID**2), generator=generator)


def layouts(where, hf, folder, bare, tmp_path):
    """A checkpoint with the VQGAN in one of the positions it may be, and the tokenizer option."""
    if where == "inside":
        return folder, None
    alone = tmp_path / "alone"  # as leloy/Anole-7b-v0.1-vqvae-hf has it
    alone.mkdir()
    save_file(C.vqgan_tensors(hf), alone / "model.safetensors")
    (alone / "config.json").write_text('{"model_type": "chameleon_vqgan"}')
    if where == "another checkpoint":
        return bare, str(folder)
    if where == "alone":
        return bare, str(alone)
    own = C.write_checkpoint(tmp_path / "own", hf, decoder=False)
    if where == "named":
        return own, str(write_vqgan(tmp_path / "vqgan.ckpt", hf))
    write_vqgan(own / where, hf)
    return own, None


FILES = ("vqgan.ckpt", "tokenizer/vqgan.ckpt", "named")
MODELS = ("another checkpoint", "alone")


@pytest.mark.parametrize("where", ["inside", *FILES, *MODELS])
def test_pictures_agree_with_transformers(hf, folder, bare, tmp_path, where):
    checkpoint, tokenizer = layouts(where, hf, folder, bare, tmp_path)
    model = C.anole(checkpoint, tokenizer=tokenizer)
    codes = some_codes()
    ours = model.tokenizer.decode(codes)
    assert model.draws and ours.dtype == torch.float32
    theirs = C.reference_pictures(hf, codes)
    torch.testing.assert_close(ours, theirs, atol=1e-4, rtol=0)
    assert float(theirs.std()) > 0.05  # a picture, not a constant
    assert ("vqgan.ckpt" in model.weights_sha256) == (where in FILES)


def test_codes_of_pictures_agree_with_transformers(hf, folder):
    images = torch.rand(3, 3, SIDE, SIDE, generator=torch.Generator().manual_seed(6))
    with torch.inference_mode():
        theirs = hf.model.vqmodel.encode(images * 2 - 1).image_tokens.view(3, -1)
    assert len(theirs.unique()) > 3
    assert torch.equal(C.anole(folder).tokenizer.encode(images), theirs)
    rows = C.lumina(folder).tokenizer.encode(images).view(3, C.GRID, C.GRID + 1)
    assert torch.equal(rows[:, :, :-1].flatten(1), theirs)
    assert (rows[:, :, -1] == C.CODES).all()


def test_row_ends_carry_no_picture(folder):
    model, codes = C.lumina(folder), some_codes()
    lines = torch.nn.functional.pad(codes.view(2, C.GRID, C.GRID), (0, 1), value=C.CODES)
    with_ends = model.tokenizer.decode(lines.flatten(1))
    assert torch.equal(with_ends, C.anole(folder).tokenizer.decode(codes))
    for wrong, says in (
        (codes, "4 rows of 4 codes and a row end, found 16 codes"),
        (torch.full((1, 20), C.CODES), "found 16 inside a row"),
    ):
        with pytest.raises(DecoderError, match=says):
            model.tokenizer.decode(wrong)


def test_a_row_end_is_nobodys_neighbour(hf, folder):
    book = C.lumina(folder).codebook
    torch.testing.assert_close(book[:-1], hf.model.vqmodel.quantize.embedding.weight)
    table = neighbour_table(book, C.CODES)
    assert (table[:-1, -1] == C.CODES).all()
    plain = neighbour_table(C.anole(folder).codebook, C.CODES - 1)
    assert torch.equal(table[:-1, :-1], plain)


@pytest.mark.parametrize("load", [C.anole, C.lumina])
def test_without_a_decoder_there_are_neighbours_but_no_pictures(bare, folder, caplog, load):
    model = load(bare)
    assert not model.draws and "no pictures made" in caplog.text
    assert torch.equal(model.codebook, load(folder).codebook)
    with pytest.raises(DecoderError, match=r"no Chameleon VQGAN with a decoder.*vqgan\.ckpt"):
        model.tokenizer.decode(some_codes())


def test_the_released_shape_is_read_off_the_tensors(tmp_path):
    """Channels, multipliers and blocks of the release, on tensors without storage."""
    from decoders.models.llamagen_vq import LlamaGenVQ, VQConfig
    from decoders.models.loading.checkpoint import Checkpoint

    released = VQConfig(codes=8192, dim=256, grid=32, l2_norm=False, group_width=1, attention=False)
    with torch.device("meta"):
        module = LlamaGenVQ(released)
    named = {CHAMELEON.name(n, 5): p.data for n, p in module.named_parameters()}
    assert "encoder.down.4.block.1.conv2.weight" in named
    assert "decoder.up.0.block.2.norm1.bias" in named and "decoder.up.4.upsample.conv.bias" in named
    assert not any(".attn." in name for name in named)
    opened = Checkpoint(tmp_path, {}, dict.fromkeys(named, tmp_path), named)
    assert config_from_tensors(CHAMELEON, opened, "", 32) == released
