"""`python -m bench --version`: the version, and the commit of the code that runs.

Why two sources: a checkout asks git, an installed wheel has a file that setup.py wrote as it was
built. setup.py runs this file by its path, so it imports the standard library alone.
"""

from __future__ import annotations

import os
import subprocess
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

NAME = "lantern-bench"
ROOT = Path(__file__).resolve().parents[2]
BUILT = "commit.txt"  # in this folder of an installed wheel


def version_line() -> str:
    """`lantern-bench 0.1.0, commit 1a2b3c4d5e6f, with uncommitted changes`."""
    try:
        number = version(NAME)
    except PackageNotFoundError:
        number = "(not installed)"
    built = Path(__file__).with_name(BUILT)
    commit = built.read_text(encoding="utf-8").strip() if built.is_file() else commit_line(ROOT)
    return f"{NAME} {number}, {commit or 'commit not known'}"


def commit_line(root: Path) -> str:
    """`commit 1a2b3c4d5e6f` of the repository whose top folder is `root`; "" where it is none."""
    commit, changed = checkout(root)
    return (
        f"commit {commit[:12]}{', with uncommitted changes' if changed else ''}" if commit else ""
    )


def checkout(root: Path = ROOT) -> tuple[str, bool]:
    """(commit, whether the tree differs from it); ("", False) where `root` is not itself the top of
    a repository: an installation, maybe inside another project's."""
    # Git's own variables (inside a hook, say) would name another repository.
    environment = {k: v for k, v in os.environ.items() if not k.startswith("GIT_")}

    def git(*words: str) -> str:
        try:
            done = subprocess.run(
                ["git", "-C", str(root), *words],
                capture_output=True, text=True, check=False, env=environment,
            )  # fmt: skip
        except FileNotFoundError:
            return ""
        return done.stdout.strip() if done.returncode == 0 else ""

    top, commit = git("rev-parse", "--show-toplevel"), git("rev-parse", "HEAD")
    if not top or not commit or Path(top).resolve() != root.resolve():
        return "", False
    return commit, bool(git("status", "--porcelain"))
