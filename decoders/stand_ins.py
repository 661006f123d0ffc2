"""What a file is that stands for another one: a failed download, a pointer, a pipe. No torch here.

Why one place: descriptions (JSON) and weights come by the same roads. A download that failed leaves
a file of the right name, and a reader would call it corrupt. Each kind has its own message here.
"""

from __future__ import annotations

from pathlib import Path

SEEN = 512  # bytes that are looked at
LFS, ANNEX = b"version https://git-lfs", b"/annex/objects/"
PAGES = (b"<!doctype", b"<html", b"<head", b"<?xml", b"<error")
FETCH = "download it again, and compare its size with the one that its source gives"


def no_file(path: Path) -> str:
    """What a path is that is there and is no file; "" for a file, and where nothing is."""
    if path.is_file() or not path.exists():
        return ""
    return "a folder" if path.is_dir() else "a named pipe or a device"


def stand_in(head: bytes, size: int) -> str:
    """What a file is that holds nothing of its own, by its first bytes; "" where it may."""
    text = head.lstrip(b"\xef\xbb\xbf \t\r\n")
    if not head:
        return f"empty (0 bytes); {FETCH}"
    if text.startswith(LFS):
        return (
            f"a Git LFS pointer of {size} bytes, which stands for the file; run `git lfs pull` in "
            "its folder"
        )
    if ANNEX in head[:SEEN] and size < SEEN:
        return "a git-annex pointer, which stands for the file; run `git annex get` in its folder"
    if text[:16].lower().startswith(PAGES):
        return (
            "an HTML or XML page, such as one that asks for a login; download the file itself, "
            "with access to it"
        )
    if not any(head):
        return f"{min(size, SEEN)} zero bytes at its beginning, a broken copy; {FETCH}"
    return ""
