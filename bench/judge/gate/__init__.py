"""The exactness gate: is a decoder exact, within its declared bound, or neither? (METHODS 3, 4)"""

from bench.judge.gate.check import check_decoder
from bench.judge.gate.report import GateReport
from bench.judge.gate.small import RealModel

__all__ = ["GateReport", "RealModel", "check_decoder"]
