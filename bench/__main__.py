"""`python -m bench <command> [overrides]`, and the console script lantern-bench.

Why so thin: --help must answer in under a second, so nothing heavy (torch, Hydra, pandas) is
imported before a command runs: the help of each is the docstring of its function, read as text.
Errors that a user can act on are shown as one message, exit status 2; interrupted runs say how far
they came and that they can be resumed, exit status 130.
"""

from __future__ import annotations

import ast
import importlib
import logging
import os
import sys
from collections.abc import Callable, Sequence
from pathlib import Path

from bench.config.arguments import at_home
from bench.console import complain, say
from bench.errors import EXPLAINED, INTERRUPTED, Interrupted, describe_os_error
from decoders.errors import unknown

COMMANDS = (
    "run",
    "sweep",
    "report",
    "check",
    "compare",
    "diff",
    "evaluate",
    "train",
    "fetch",
    "list",
)
USAGE = """usage: python -m bench COMMAND [setting=value ...]

commands:
{commands}

settings are Hydra overrides, for example
  python -m bench run study=smoke
  python -m bench run study=main decoders=[ar,lantern] latency.prompts=12 quality.images=64
  python -m bench run study=main sampling.temperature=0 acceptance.delta=0.1 run_dir=/tmp/greedy
  python -m bench run prompts=file prompts.path=mine.txt hydra.searchpath=[file:///my/conf]
  python -m bench list decoder
`python -m bench COMMAND --help` shows a command's own settings.
-v before the command shows what is going on; --version: which version and commit this is."""
HELP = ("-h", "--help", "help")
# How long a thread of OpenMP waits awake for the next product: some milliseconds, since waking one
# costs as much as a small product. It must be set before torch is imported.
if "OMP_WAIT_POLICY" not in os.environ:  # a spin count would take precedence over it
    os.environ.setdefault("GOMP_SPINCOUNT", "3000000")
# Figures are files. A notebook hands its own back-end down, which this environment may lack, and
# matplotlib is then not even imported.
os.environ["MPLBACKEND"] = "Agg"


def main(argv: Sequence[str] | None = None) -> int:
    """Runs one command line; returns the exit status (0 done, 1 failed decoders, 2 bad request).
    Raises SystemExit(141) where the reader of a pipe has left."""
    arguments = list(sys.argv[1:] if argv is None else argv)
    verbose = bool(arguments) and arguments[0] in ("-v", "--verbose")
    arguments = arguments[1:] if verbose else arguments
    if arguments[:1] == ["--version"]:
        from bench.version import version_line

        say(version_line())
        return 0
    help_wanted = not arguments or arguments[0] in HELP
    name, rest = (*arguments[help_wanted:], "")[0], arguments[1:]
    if name and name not in COMMANDS:
        complain(f"error: {unknown('command', name, COMMANDS)}\n`python -m bench --help` explains.")
        return 2
    if help_wanted or {*HELP[:2]} & {*rest}:
        say(manual(name) if name else usage())
        return 0
    level = logging.INFO if verbose else logging.WARNING
    logging.basicConfig(level=level, format="%(levelname)s: %(message)s")
    # Its warning that there is no CUDA runtime would stand in the middle of a progress bar.
    logging.getLogger("torch.utils.cpp_extension").setLevel(logging.ERROR)

    def command(arguments: Sequence[str]) -> int:
        module = importlib.import_module(f"bench.commands.{name}")
        return int(getattr(module, f"cmd_{name}")(arguments))

    return run_command(command, rest)


def run_command(command: Callable[[Sequence[str]], int], arguments: Sequence[str]) -> int:
    """Runs a command; returns its exit status. What a user can act on is one message."""
    try:
        return command([at_home(one) for one in arguments])
    except KeyboardInterrupt as stop:
        plain = "interrupted; the same command starts again, or goes on where it stopped"
        complain(f"\n{stop if isinstance(stop, Interrupted) else plain}")
        return INTERRUPTED
    except (*EXPLAINED, OSError) as error:
        message = describe_os_error(error) if isinstance(error, OSError) else str(error)
        if message is None:
            raise
        complain(f"error: {message}")
        return 2


def usage() -> str:
    """Writes the text of --help."""
    firsts = {name: manual(name).partition("\n")[0].rstrip(".") for name in COMMANDS}
    lines = [f"  {name:<15}{first[0].lower()}{first[1:]}" for name, first in firsts.items()]
    return USAGE.format(commands="\n".join(lines))


def manual(command: str) -> str:
    """Reads the help of a command: the docstring of its function."""
    file = Path(__file__).parent / "commands" / f"{command}.py"
    nodes = ast.parse(file.read_text(encoding="utf-8")).body
    docs = {n.name: ast.get_docstring(n) for n in nodes if isinstance(n, ast.FunctionDef)}
    return docs[f"cmd_{command}"] or ""


if __name__ == "__main__":
    sys.exit(main())
