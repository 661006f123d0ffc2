"""transformers' models with their checkpoints, which several files read: made once."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from decoders.models import simplear
from tests import checkpoints as K


@pytest.fixture(scope="package", autouse=True)
def few_codes() -> Iterator[None]:
    """SimpleAR's 64,000 codes make 64,000 neighbours each."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(simplear, "AXIS_LEVELS", K.LEVELS)
        yield


@pytest.fixture(scope="session")
def theirs() -> dict[str, Any]:
    """transformers' model of every family."""
    return {kind: K.hf_model(kind) for kind in K.CODES}


@pytest.fixture(scope="session")
def folders(theirs: Any, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """The checkpoint of every kind; Chameleon's with the VQGAN's decoder, as in Anole's conversion,
    and a drafter."""
    root = tmp_path_factory.mktemp("hub")
    made = {kind: K.write_hf(root / kind, theirs[kind], K.vocabulary(kind)) for kind in theirs}
    named = {f"model.vqmodel.{name}": x for name, x in K.chameleon_decoder().items()}
    K.change_tensors(made["chameleon"], lambda tensors: tensors | named)
    drafter = K.chameleon_drafter(theirs["chameleon"])[1]
    K.write_folder(made["chameleon"] / "drafter", drafter, {})
    return made | dict.fromkeys(("anole", "lumina"), made["chameleon"])
