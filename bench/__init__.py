"""The harness: studies, protocols, records. Knows no concrete decoder."""

import importlib
import sys
from pathlib import Path

# `python -m bench` looks for modules in the current folder first, where a project may have a conf/
# or metrics/ of its own: those that belong to this package are imported before.
ROOT = str(Path(__file__).parents[1])
sys.path.insert(0, ROOT)
for name in ("conf", "decoders", "metrics"):
    file = importlib.import_module(name).__file__
    if file is None or not Path(file).is_relative_to(ROOT):
        raise ImportError(
            f"{file or name} was imported as `{name}`, which lantern-bench has in {ROOT}; import "
            f"bench before it, or give your own another name"
        )
sys.path.remove(ROOT)
