"""Chameleon's checkpoint, which several files read: made once."""

from __future__ import annotations

import pytest

from tests.decoders.models import chameleon_checkpoint as C


@pytest.fixture(scope="session")
def hf():
    return C.hf_model()


@pytest.fixture(scope="session")
def folder(hf, tmp_path_factory):
    return C.write_checkpoint(tmp_path_factory.mktemp("chameleon"), hf)
