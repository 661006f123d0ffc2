"""What pyproject.toml cannot say: files that a wheel gets besides its packages.

results/published lies outside the packages and is read by `compare`; the commit is known as long as
there is a repository. An editable install reads both where they are.
"""

import runpy
from pathlib import Path

from setuptools import setup
from setuptools.command.build_py import build_py
from setuptools.command.sdist import sdist

ROOT = Path(__file__).resolve().parent
PUBLISHED = sorted(Path("results/published").iterdir())  # relative: setuptools wants it so
VERSION = runpy.run_path(str(ROOT / "bench" / "version.py"))
COMMIT, CHANGED = VERSION["checkout"](ROOT)  # now, as a build writes into the tree


def write_commit(folder: Path) -> None:
    """Writes the commit of this repository, or source distribution, for `bench.version`."""
    if COMMIT:
        (folder / VERSION["BUILT"]).write_text(f"{COMMIT}{' changed' if CHANGED else ''}\n")


class BuildWithData(build_py):
    """Also copies the published numbers into bench/compare/data, and writes the commit."""

    def run(self) -> None:
        super().run()
        if self.editable_mode:
            return
        data = Path(self.build_lib) / "bench" / "compare" / "data"
        data.mkdir(parents=True, exist_ok=True)
        for path in PUBLISHED:
            self.copy_file(str(path), str(data / path.name))
        write_commit(Path(self.build_lib))

    def get_source_files(self) -> list[str]:
        """What a source distribution needs to build the wheel."""
        return [*super().get_source_files(), *map(str, PUBLISHED)]


class SourceWithCommit(sdist):
    """Writes the commit, as a source distribution is no repository."""

    def make_release_tree(self, base_dir: str, files: list[str]) -> None:
        super().make_release_tree(base_dir, files)
        write_commit(Path(base_dir))


setup(cmdclass={"build_py": BuildWithData, "sdist": SourceWithCommit})
