"""Builds a decoder out of its four parts, each named by a dotted path (DESIGN: composed, not
subclassed)."""

from __future__ import annotations

import difflib
import importlib
import inspect
import pkgutil
import sys
import sysconfig
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from types import ModuleType
from typing import Any

from decoders.api import Decoder, DecoderError, ImageModel, Sampling
from decoders.kinds import KindError, fitted, hints_of


@dataclass(frozen=True)
class PartSpec:
    """A class by its dotted path (``package.module.Class`` or ``package.module:Class``), its
    keywords."""

    target: str
    kwargs: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class DecoderSpec:
    name: str
    loop: PartSpec
    drafter: PartSpec | None = None
    tree: PartSpec | None = None
    acceptance: PartSpec | None = None


def resolve(path: str) -> Any:
    """Imports what a dotted path names; DecoderError with the nearest names if it is not there."""
    module_name, _, attribute = path.partition(":") if ":" in path else path.rpartition(".")
    if not module_name or not attribute:
        raise DecoderError(
            f"{path!r} names no class: expected package.module.Class or package.module:Class"
        )
    module = _import(module_name, path)
    if not hasattr(module, attribute):
        public = [n for n in vars(module) if not n.startswith("_")]
        raise DecoderError(f"{module_name} has no {attribute!r}{_nearest(attribute, public)}")
    return getattr(module, attribute)


def _import(name: str, path: str) -> ModuleType:
    try:
        return importlib.import_module(name)
    except ModuleNotFoundError as error:
        missing = error.name or name
        if not f"{name}.".startswith(f"{missing}."):  # it exists, something that it needs does not
            raise
        package, _, leaf = missing.rpartition(".")
        inside = importlib.import_module(package) if package else None
        folders = _own_folders() if inside is None else list(getattr(inside, "__path__", []))
        near = _nearest(leaf, [module.name for module in pkgutil.iter_modules(folders)])
        where = f"looked in {', '.join(folders) or 'no folder'}"
        if inside is None:
            where += (
                f" and Python's own; a folder with {leaf}.py is looked in too with PYTHONPATH=DIR "
                "before the command"
            )
        raise DecoderError(f"cannot import {missing!r} (for {path!r}){near}; {where}") from error


def _own_folders() -> list[str]:
    """Where a module is looked for, without the folders of Python and of installed packages."""
    paths = sysconfig.get_paths()
    installed = [Path(paths[key]) for key in ("stdlib", "platstdlib", "purelib", "platlib")]
    folders = [Path(entry or ".").absolute() for entry in sys.path]
    return [
        str(folder)
        for folder in dict.fromkeys(folders)
        if folder.is_dir() and not any(folder.is_relative_to(other) for other in installed)
    ]


def _nearest(name: str, known: list[str]) -> str:
    near = difflib.get_close_matches(name, known, 3, 0.4)
    return f"; nearest: {', '.join(near)}" if near else ""


def build_part(part: PartSpec, model: ImageModel, **extra: Any) -> Any:
    """cls(model, **extra, **kwargs), with a clear error on a keyword the class does not take."""
    cls = resolve(part.target)
    parameters = inspect.signature(cls).parameters
    open_ended = any(p.kind is inspect.Parameter.VAR_KEYWORD for p in parameters.values())
    unknown = [k for k in part.kwargs if k not in parameters]
    if unknown and not open_ended:
        options = [n for n in parameters if n not in ("model", *extra)]
        raise DecoderError(
            f"{part.target} has no option {unknown[0]!r}"
            f"{_nearest(unknown[0], options)}; it takes: "
            f"{', '.join(options) or 'no options'}"
        )
    check_keywords(part.target, cls, part.kwargs, parameters)
    return cls(model, **extra, **part.kwargs)


def check_keywords(
    target: str, made: Any, kwargs: Mapping[str, Any], parameters: Mapping[str, inspect.Parameter]
) -> None:
    """DecoderError where a keyword is not what `made` annotates it with; its default always is."""
    hints = hints_of(made)
    for name, value in kwargs.items():
        if name in hints and not (name in parameters and value is parameters[name].default):
            try:
                fitted(f"{target}: {name}", value, hints[name])
            except KindError as error:
                raise DecoderError(str(error)) from error


def build_decoder(model: ImageModel, spec: DecoderSpec, sampling: Sampling) -> Decoder:
    """The decoder of a specification on a model. Raises DecoderError before any work starts."""
    parts = {
        name: None if part is None else build_part(part, model)
        for name, part in (
            ("drafter", spec.drafter),
            ("tree", spec.tree),
            ("acceptance", spec.acceptance),
        )
    }
    return build_part(spec.loop, model, sampling=sampling, **parts)
