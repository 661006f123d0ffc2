"""The exactness gate: is a decoder exact, within its declared bound, or neither? (METHODS 3 and 4)

`check_decoder` builds the decoder's composition on small random models and measures.
"""

from bench.judge.gate.check import check_decoder
from bench.judge.gate.report import GateReport

__all__ = ["GateReport", "check_decoder"]
