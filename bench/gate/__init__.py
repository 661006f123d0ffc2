"""The exactness gate: is a decoder exact, within its declared bound, or neither? (METHODS 3, 4)"""

from bench.gate.check import check_decoder, check_rule
from bench.gate.report import GateReport
from bench.gate.small import GateSizes, RealModel

__all__ = ["GateReport", "GateSizes", "RealModel", "check_decoder", "check_rule"]
