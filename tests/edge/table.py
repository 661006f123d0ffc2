"""What a bad input is, and what its answer must look like."""

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import pytest

from bench.__main__ import main

HERE = Path(__file__).parents[1]
PLACES = f"file://{HERE}/bench/conf"
FOUND = f"hydra.searchpath=[{PLACES}]"
SMALL = (FOUND, "model=random24")  # a model that loads in no time, for what no weights decide
MOST_SECONDS = 20.0  # of processor time: an answer that takes longer is a hang


@dataclass(frozen=True)
class Bad:
    """One bad input. `words`: a command line, `{tmp}` standing for a fresh folder; `says`: a word
    that the message holds, whatever its case; `prepare`: makes the files that it names, given the
    fresh folder; `status`: the exit status (2: a request that cannot be, 1: decoders failed)."""

    name: str
    words: Sequence[str]
    says: str
    prepare: Callable[[Path], object] | None = None
    status: int = 2


def answered(
    case: Bad, tmp: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Runs the command line of a case and asserts that its answer is one message, without a
    traceback, with the expected word, in time."""
    if case.prepare is not None:
        case.prepare(tmp)
    monkeypatch.chdir(tmp)
    monkeypatch.syspath_prepend(str(tmp))
    words = [word.replace("{tmp}", str(tmp)) for word in case.words]
    capsys.readouterr()
    began = time.process_time()
    status = main(words)
    spent = time.process_time() - began
    out, err = capsys.readouterr()
    assert status == case.status, f"exit status {status}, said: {err or out}"
    assert "Traceback" not in err + out
    assert case.says.lower() in (err + out).lower(), f"{case.says!r} is not in: {err or out}"
    assert spent < MOST_SECONDS, f"{spent:.0f} s"
