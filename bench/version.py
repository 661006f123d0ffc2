"""`python -m bench --version`: the version, and the commit of the code that runs.

Why two sources: a checkout asks git, what setup.py built has a file that it wrote. setup.py runs
this file by its path, so it imports the standard library alone.
"""

from __future__ import annotations

import os
import subprocess
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

NAME = "lantern-bench"
ROOT = Path(__file__).resolve().parents[1]
BUILT = Path("bench/commit.txt")  # of an installation or a source distribution


def version_line() -> str:
    """Returns `lantern-bench 0.2.0, commit 1a2b3c4d5e6f, with uncommitted changes`."""
    try:
        number = version(NAME)
    except PackageNotFoundError:
        number = "(not installed)"
    commit, changed = checkout()
    source = f"commit {commit[:12]}" if commit else "commit not known"
    return f"{NAME} {number}, {source}{', with uncommitted changes' if changed else ''}"


def short_commit(commit: str, digits: int = 10) -> str:
    """The first digits of a commit; a text in its place, as "not a checkout", stays whole."""
    return commit[:digits] if set(commit) <= set("0123456789abcdef") else commit


def checkout(root: Path = ROOT) -> tuple[str, bool]:
    """Returns (commit, whether the tree differs from it) of what was built, or of the repository
    whose top folder is `root`; ("", False) where `root` is neither: a copy, maybe inside another
    project's repository."""
    if (root / BUILT).is_file():
        commit, *changed = (root / BUILT).read_text(encoding="utf-8").split()
        return commit, bool(changed)
    # Git's own variables (inside a hook, say) would name another repository.
    environment = {k: v for k, v in os.environ.items() if not k.startswith("GIT_")}

    def git(*words: str) -> str:
        try:
            done = subprocess.run(
                ["git", "-C", str(root), *words],
                capture_output=True,
                text=True,
                check=False,
                env=environment,
            )
        except FileNotFoundError:
            return ""
        return done.stdout.strip() if done.returncode == 0 else ""

    top, commit = git("rev-parse", "--show-toplevel"), git("rev-parse", "HEAD")
    if not top or not commit or Path(top).resolve() != root.resolve():
        return "", False
    return commit, bool(git("status", "--porcelain"))
