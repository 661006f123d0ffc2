"""Chameleon's checkpoint with its drafter, which several files read: made once."""

import pytest

from tests.decoders.models import chameleon_checkpoint as C
from tests.decoders.models.random_checkpoints.chameleon import published_drafter


@pytest.fixture(scope="session")
def hf():
    return C.hf_model()


@pytest.fixture(scope="session")
def folder(hf, tmp_path_factory):
    from safetensors.torch import save_file

    made = C.write_checkpoint(tmp_path_factory.mktemp("chameleon"), hf)
    (made / "drafter").mkdir()
    save_file(published_drafter(hf)[1], made / "drafter" / "model.safetensors")
    return made
