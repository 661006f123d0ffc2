"""What pyproject.toml cannot say: files that a wheel gets besides its packages.

results/published lies outside the packages and is read by `compare`; the commit is known as long as
there is a repository. An editable install reads both where they are.
"""

import runpy
from pathlib import Path

from setuptools import setup
from setuptools.command.build_py import build_py

ROOT = Path(__file__).resolve().parent
PUBLISHED = sorted(Path("results/published").iterdir())  # relative: setuptools wants it so


class BuildWithData(build_py):
    """Also copies the published numbers into bench/compare/data and writes
    bench/data/commit.txt."""

    def run(self) -> None:
        super().run()
        if self.editable_mode:
            return
        data = Path(self.build_lib) / "bench" / "compare" / "data"
        data.mkdir(parents=True, exist_ok=True)
        for path in PUBLISHED:
            self.copy_file(str(path), str(data / path.name))
        version = runpy.run_path(str(ROOT / "bench" / "data" / "version.py"))
        line = version["commit_line"](ROOT)
        if line:
            (Path(self.build_lib) / "bench" / "data" / version["BUILT"]).write_text(line + "\n")

    def get_source_files(self) -> list[str]:
        """What a source distribution needs to build the wheel."""
        return [*super().get_source_files(), *map(str, PUBLISHED)]


setup(cmdclass={"build_py": BuildWithData})
