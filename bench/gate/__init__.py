"""The exactness gate: is a decoder exact, within its declared bound, or neither? (METHODS 3, 4)"""

from bench.gate.check import check_decoder
from bench.gate.report import GateReport
from bench.gate.small import RealModel

__all__ = ["GateReport", "RealModel", "check_decoder"]
