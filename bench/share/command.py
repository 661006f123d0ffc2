"""`python -m bench publish RUN DIR` and `python -m bench leaderboard DIR`."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from bench.config.words import given, split
from bench.console import say
from bench.errors import ConfigError, FolderError
from bench.os_errors import ready_file

ENDINGS = (".html", ".csv", ".md")


def cmd_publish(words: Sequence[str]) -> int:
    """Copies what is shared of a run into a folder. Raises ConfigError, FolderError."""
    from bench.share.publish import publish

    folders, told = _apart(words, ("lists",), "publish")
    if len(folders) != 2:
        raise ConfigError(
            f"expected a run folder and a folder to publish in, found {len(folders)}; write "
            "`publish results/runs/main results/tables/main`"
        )
    lists = told.get("lists", "false")
    if lists not in ("true", "false"):
        raise ConfigError(f"lists must be true or false, found {lists!r}")
    run, folder = folders
    made = publish(run, folder, lists == "true")
    size = sum(path.stat().st_size for path in made)
    plots = ", and the plots of its report" if (folder / "plots").is_dir() else ""
    say(f"{folder}: {len(made)} files, {size / 1e3:,.0f} kB{plots}")
    return 0


def cmd_leaderboard(words: Sequence[str]) -> int:
    """Prints the leaderboard of a folder of records, and writes it. Raises ConfigError,
    FolderError."""
    from bench.records.schema import write_text
    from bench.share import write
    from bench.share.leaderboard import lines_of, records_in, sections

    folders, told = _apart(words, ("out",), "leaderboard")
    if len(folders) != 1:
        raise ConfigError(
            f"expected one folder of records, found {len(folders)}; write `leaderboard DIR`"
        )
    (folder,) = folders
    out = Path(told.get("out") or folder / "leaderboard.html").expanduser()
    if out.suffix not in ENDINGS:
        raise ConfigError(f"out={out} must end in {', '.join(ENDINGS)}: that says the format")
    records = records_in(folder)
    lines = [line for record in records for line in lines_of(record, folder)]
    if not lines:
        raise FolderError(f"the records below {folder} have no decoders: their summaries are empty")
    found = sections(lines)
    ready_file(out)
    texts = {
        ".html": lambda: write.html(found, len(records)),
        ".csv": lambda: write.csv(lines),
        ".md": lambda: write.markdown(found),
    }
    say(write.terminal(found))
    write_text(out, texts[out.suffix]())
    say(f"\nleaderboard: {out} (records: {len(records)})")
    return 0


def _apart(
    words: Sequence[str], keys: Sequence[str], command: str
) -> tuple[list[Path], dict[str, str]]:
    """Folders, and key=value words."""
    folders = [Path(word).expanduser() for word in words if split(word).value is None]
    told = given([word for word in words if split(word).value is not None], keys, command)
    return folders, told
