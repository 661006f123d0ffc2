"""Triton's compiler is what is tested: nothing to collect without it, nor in its interpreter."""

import os
from importlib.util import find_spec

if find_spec("triton") is None or os.environ.get("TRITON_INTERPRET") == "1":
    collect_ignore_glob = ["test_*"]
