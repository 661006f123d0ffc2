"""The command line: quick help, and errors that say what to do."""

import os
import re
import resource
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

from bench.__main__ import COMMANDS, main, manual
from bench.config.arguments import groups
from bench.config.compose import compose_study

AS_HERE = {**os.environ, "PYTHONPATH": str(Path(__file__).parents[3])}
HEAVY = ("torch", "hydra", "omegaconf", "pandas", "numpy", "pyarrow", "matplotlib")


def test_help_is_quick_and_imports_nothing_heavy():
    code = (
        "import sys; sys.argv = ['bench', '--help']\n"
        "from bench.__main__ import main\n"
        "status = main(), main(['evaluate', '--help'])\n"
        f"print(status, [m for m in {HEAVY} if m in sys.modules])"
    )
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    asked = [sys.executable, "-c", code]
    done = subprocess.run(asked, env=AS_HERE, capture_output=True, text=True, check=True)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    # Processor time: what the wall clock says on an idle machine.
    assert after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime < 1.0
    assert done.stdout.splitlines()[-1] == "(0, 0) []"
    assert "run a study" in done.stdout and "images=DIR" in done.stdout


def test_a_project_with_folders_of_the_same_names_is_no_obstacle(tmp_path):
    """`python -m` puts the current folder first among those that modules are looked for in. A
    notebook may have imported its own already."""
    for name in ("conf", "decoders", "metrics"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "__init__.py").touch()
    code = (
        "from bench.config.compose import compose_study; print(compose_study(['study=smoke']).name)"
    )
    command = [sys.executable, "-c", code]
    done = subprocess.run(command, cwd=tmp_path, env=AS_HERE, capture_output=True, text=True)
    assert done.stdout == "smoke\n", done.stderr
    for name in ("conf", "decoders", "metrics"):
        command[2] = f"import {name}, bench"
        done = subprocess.run(command, cwd=tmp_path, env=AS_HERE, capture_output=True, text=True)
        assert f"__init__.py was imported as `{name}`, which lantern-bench has in " in done.stderr


def test_list_shows_options_with_what_they_are(capsys):
    assert main(["list", "decoders", "study"]) == 0
    shown = capsys.readouterr().out
    assert "lantern_pp" in shown and "2502.06352" in shown and "smoke" in shown
    assert "what the paper's 100 to 1000 are to 16384." in " ".join(shown.split()), "to the end"
    assert "  python -m bench train drafter=hawk model=tiny" in shown, "a command stays a line"
    assert max(len(line) for line in shown.splitlines() if "python -m" not in line) <= 100
    assert main(["list", "settings"]) == 0
    assert "warmup_max" in capsys.readouterr().out
    assert main(["list", "acceptance=lantern_pp"]) == 0
    shown = capsys.readouterr().out
    assert "lam:" in shown and "delta" not in shown


@pytest.mark.parametrize("group", ["decoder", "proposer", "drafter", "tree", "acceptance"])
def test_a_decoder_is_listed_with_bibtex_of_the_papers_of_its_parts(group, capsys):
    for option in groups()[group]:
        assert main(["list", f"{group}={option}"]) == 0
        shown = capsys.readouterr().out
        assert "is not in papers.bib" not in shown, option
        entries = re.findall(r"^@misc\{\w+,\n(.*?)^\}$", shown, re.MULTILINE | re.DOTALL)
        assert entries or group != "decoder" or option == "ar", option
        for entry in entries:
            fields = dict(re.findall(r"^  (\w+) = \{(.+)\},?$", entry, re.MULTILINE))
            assert {"author", "title", "year", "eprint"} <= fields.keys(), option
            assert fields["year"].isdigit() and " and " in fields["author"]


@pytest.mark.parametrize(
    ("decoder", "papers"),
    [
        ("lantern_pp", {"2502.06352", "2401.15077"}),
        ("eagle2", {"2406.16858", "2401.15077", "2211.17192"}),
        ("sjd_pac", {"2603.18599", "2211.17192"}),
        ("lantern_chain", {"2410.03355", "2401.15077", "2211.17192"}),
    ],
)
def test_the_papers_of_a_decoder_are_those_of_rule_drafter_and_tree(decoder, papers, capsys):
    assert main(["list", f"decoder={decoder}"]) == 0
    assert {*re.findall(r"eprint = \{(.+)\}", capsys.readouterr().out)} == papers


@pytest.mark.parametrize("command", COMMANDS)
def test_every_command_shows_its_own_help(command, capsys):
    shown = {}
    for words in ([command, "--help"], ["help", command], [command, "study=smoke", "-h"]):
        assert main(words) == 0
        shown[words[-1]] = capsys.readouterr().out
    (text,) = set(shown.values())
    example = text.splitlines()[-1].strip()
    assert example.startswith(f"python -m bench {command} ")
    assert max(len(line) for line in text.splitlines()) <= 100


def test_help_names_every_setting_of_a_command():
    from bench.commands.compare import CompareSettings
    from bench.commands.evaluate import EvaluateConfig
    from metrics.networks import PUBLIC_FILES
    from metrics.papers import METRICS

    for name in {*EvaluateConfig.__dataclass_fields__} - {"weights", "folder"}:
        assert f"  {name}" in manual("evaluate")
    for name in (*METRICS, *PUBLIC_FILES):
        assert name in manual("evaluate")
    assert all(f"  {name}=" in manual("compare") for name in CompareSettings.__dataclass_fields__)


@pytest.mark.parametrize("command", [c for c in COMMANDS if "list settings`):" in manual(c)])
def test_the_examples_of_help_are_understood(command):
    compose_study(shlex.split(manual(command).splitlines()[-1])[4:])


def test_a_reader_that_leaves_ends_it_quietly():
    """As `| head` does: here the reader leaves before the first line."""
    late = f"(sleep 0.5; exec {shlex.quote(sys.executable)} -m bench --version)"
    shell = ["bash", "-c", f"{late} 2> said | true; echo ${{PIPESTATUS[0]}}; cat said"]
    done = subprocess.run(shell, env=AS_HERE, capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["141"] and done.stderr == ""
