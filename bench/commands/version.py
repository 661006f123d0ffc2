"""`python -m bench --version`: the version, and the commit of the code that runs.

Why two sources: a checkout asks git, an installed wheel has a file that setup.py wrote as it was
built. setup.py runs this file by its path, so it imports the standard library alone.
"""

from __future__ import annotations

import subprocess
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

NAME = "lantern-bench"
BUILT = "commit.txt"  # in this folder of an installed wheel


def version_line() -> str:
    """`lantern-bench 0.1.0, commit 1a2b3c4d5e6f, with uncommitted changes`."""
    try:
        number = version(NAME)
    except PackageNotFoundError:
        number = "(not installed)"
    built = Path(__file__).with_name(BUILT)
    if built.is_file():
        commit = built.read_text(encoding="utf-8").strip()
    else:
        commit = commit_line(Path(__file__).resolve().parents[2])
    return f"{NAME} {number}, {commit or 'commit not known'}"


def commit_line(root: Path) -> str:
    """`commit 1a2b3c4d5e6f` of the repository whose top folder is `root`; "" where it is none. A
    folder inside another project's repository is not that project's."""
    top = _git(root, "rev-parse", "--show-toplevel")
    if not top or Path(top).resolve() != root.resolve():
        return ""
    commit = _git(root, "rev-parse", "--short=12", "HEAD")
    changed = _git(root, "status", "--porcelain")
    return f"commit {commit}{', with uncommitted changes' if changed else ''}" if commit else ""


def _git(root: Path, *words: str) -> str:
    """What git says; "" without git, or where it refuses."""
    try:
        done = subprocess.run(
            ["git", "-C", str(root), *words], capture_output=True, text=True, check=False
        )
    except FileNotFoundError:
        return ""
    return done.stdout.strip() if done.returncode == 0 else ""
