"""The verdict of the exactness gate on a decoder, as a run stores and shows it. Who judges is
`bench.gate`."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

RuleAlone = Literal["exact rule", "relaxed rule", "no rule"]  # of a rule without its loop
Word = Literal["exact", "relaxed", "broken", "synthetic", "not checked"] | RuleAlone
EITHER = "exact or relaxed"  # what is expected where a study says nothing
ACCEPTABLE = "exact", "relaxed", "synthetic", "no"
AS_TEXT = re.compile(r"([a-z ]+?)( as far as sampled \(TV < (\S+)\)| \(target changed\)| \(TV .+)?")


@dataclass(frozen=True)
class Verdict:
    """word, for one setting of sampling: `exact` (the target's law, or its tokens), `relaxed` (the
    output law differs, and the rule declares it), `broken` (a claim is false), `synthetic` (drafts
    are accepted at given rates), `not checked` (the gate itself failed); `... rule` where no loop
    was looked at. figure: the largest output TV on small random models, in [0, 1] (greedy: the
    largest TV shift of an accepted draft). expected: the word that it should be. sampled: the least
    TV that samples would have shown, 0 where the law was enumerated to the end; sampled_length: in
    images of so many codes, 0 of runs that do not say it. changed: the loop
    is made for other targets and was judged on an ordinary one, and the figure is NaN. checks:
    their results (`bench.gate.result.Check`), which are not stored."""

    word: Word
    detail: str
    figure: float = math.nan
    expected: str = EITHER
    sampled: float = 0.0
    sampled_length: int = 0
    changed: bool = False
    checks: tuple[Any, ...] = ()

    @property
    def text(self) -> str:
        """A table's cell. A relaxed rule shows no figure: its worst node belongs to a small random
        model."""
        if self.word == "broken" and self.figure:
            return f"broken (TV {self.figure:.4f})"
        if self.word == "exact" and self.sampled:
            images = f" in images of {self.sampled_length} codes" * bool(self.sampled_length)
            return f"exact as far as sampled (TV < {self.sampled:.2g}{images})"
        return self.word + " (target changed)" * self.changed

    @property
    def as_expected(self) -> bool:
        word = self.word.removesuffix(" rule")
        return word == self.expected or word in (ACCEPTABLE if self.expected == EITHER else ("no",))

    @property
    def line(self) -> dict[str, Any]:
        """Its line of exactness.csv."""
        return {name: getattr(self, name) for name in ("text", "detail", "figure", "expected")}


def stored_verdict(entries: Mapping[str, Any]) -> dict[str, Any]:
    """The fields of a stored verdict. Runs before version 0.4 have the text in place of the word
    and of what it is made of."""
    fields = dict(entries)
    match = AS_TEXT.fullmatch(fields.pop("text", ""))
    if match is not None:
        fields |= {"word": match[1], "sampled": float(match[3] or 0)}
        fields["changed"] = match[2] == " (target changed)"
    return fields
