"""The harness: studies, protocols, records. Knows no concrete decoder."""

import importlib
import sys
from pathlib import Path

# `python -m bench` looks for modules in the current folder first, where a project may have a conf/
# or metrics/ of its own: those that belong to this package are imported before.
ROOT = str(Path(__file__).parents[1])
sys.path.insert(0, ROOT)
for name in ("conf", "decoders", "metrics"):
    importlib.import_module(name)
sys.path.remove(ROOT)
