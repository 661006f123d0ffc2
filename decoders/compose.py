"""Builds a decoder out of its four parts, each named by a dotted path: composed, not
subclassed."""

from __future__ import annotations

import dataclasses
import importlib
import inspect
import pkgutil
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from types import ModuleType
from typing import Any

from decoders.api import (
    Decoder,
    DecoderError,
    ImageModel,
    Proposer,
    Sampling,
    Verifier,
    completed,
)
from decoders.kinds import KindError, fitted, hints_of
from decoders.nearest import did_you_mean
from decoders.places import installed_folders, place
from decoders.propose.tree_proposer import TreeProposer
from decoders.verify.token_verifier import TokenVerifier


class BrokenModule(DecoderError):
    """A module that is there and cannot be imported: it, or what it needs, raises."""


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
    acceptance: PartSpec | None = None  # a rule, or a verifier
    proposer: PartSpec | None = None  # in the place of drafter and tree

    @property
    def parts(self) -> list[PartSpec]:
        """Those that it has."""
        every = (self.loop, self.proposer, self.drafter, self.tree, self.acceptance)
        return [part for part in every if part is not None]


def resolve(path: str) -> Any:
    """Imports what a dotted path names. Raises DecoderError with the nearest names where it is not
    there, BrokenModule where importing it fails."""
    module_name, _, attribute = path.partition(":") if ":" in path else path.rpartition(".")
    if not module_name or not attribute:
        raise DecoderError(
            f"{path!r} names no class: expected package.module.Class or package.module:Class"
        )
    module = _import(module_name, path)
    if not hasattr(module, attribute):
        public = [n for n in vars(module) if not n.startswith("_")]
        hint = did_you_mean(attribute, public)
        raise DecoderError(f"{module_name} has no {attribute!r}{hint}")
    return getattr(module, attribute)


def _import(name: str, path: str) -> ModuleType:
    try:
        return importlib.import_module(name)
    except ModuleNotFoundError as error:
        missing = error.name or name
        if not f"{name}.".startswith(f"{missing}."):  # it exists, something that it needs does not
            raise _broken(name, path, error) from error
        package, _, leaf = missing.rpartition(".")
        inside = importlib.import_module(package) if package else None
        folders = _own_folders() if inside is None else list(getattr(inside, "__path__", []))
        near = did_you_mean(leaf, [module.name for module in pkgutil.iter_modules(folders)])
        where = f"looked in {', '.join(folders) or 'no folder'}"
        if inside is None:
            where += (
                f" and Python's own; a folder with {leaf}.py is looked in too with PYTHONPATH=DIR "
                "before the command"
            )
        raise DecoderError(f"cannot import {missing!r} (for {path!r}){near}; {where}") from error
    except Exception as error:  # a plug-in's file may raise anything
        raise _broken(name, path, error) from error


def _broken(name: str, path: str, error: Exception) -> BrokenModule:
    """What importing a module raised, with the line of a file of one's own."""
    text = error.msg if isinstance(error, SyntaxError) else str(error)
    where = place(error)
    return BrokenModule(
        f"cannot import {name!r} (for {path!r}): {type(error).__name__}: {text}"
        + (f", at {where}" if where else "")
        + "; mend the file or install what it needs"
    )


def _own_folders() -> list[str]:
    """Where a module is looked for, without the folders of Python and of installed packages."""
    installed = installed_folders()
    folders = [Path(entry or ".").absolute() for entry in sys.path]
    return [
        str(folder)
        for folder in dict.fromkeys(folders)
        if folder.is_dir() and not any(folder.is_relative_to(other) for other in installed)
    ]


def build_part(part: PartSpec, model: ImageModel, **extra: Any) -> Any:
    """cls(model, **extra, **kwargs), with a clear error on a keyword the class does not take."""
    cls = resolve(part.target)
    if not callable(cls):
        raise DecoderError(f"{part.target} must be a class, found {type(cls).__name__}: {cls!r}")
    parameters = inspect.signature(cls).parameters
    open_ended = any(p.kind is inspect.Parameter.VAR_KEYWORD for p in parameters.values())
    unknown = [k for k in part.kwargs if k not in parameters]
    if unknown and not open_ended:
        options = [n for n in parameters if n not in ("model", *extra)]
        hint = did_you_mean(unknown[0], options) or "."
        raise DecoderError(
            f"{part.target} has no option {unknown[0]!r}{hint} It takes: "
            f"{', '.join(options) or 'no options'}"
        )
    check_keywords(part.target, cls, part.kwargs, parameters)
    return cls(model, **extra, **part.kwargs)


def check_keywords(
    target: str, cls: Any, kwargs: Mapping[str, Any], parameters: Mapping[str, inspect.Parameter]
) -> None:
    """DecoderError where a keyword is not what `cls` annotates it with; its default always is."""
    hints = hints_of(cls)
    if isinstance(cls, type) and dataclasses.is_dataclass(cls):
        for base in inspect.getmro(cls):  # a field is annotated in the words of its own module
            hints = (hints_of(base) if "__init__" in vars(base) else {}) | hints
    for name, value in kwargs.items():
        if name in hints and not (name in parameters and value is parameters[name].default):
            try:
                fitted(f"{target}: {name}", value, hints[name])
            except KindError as error:
                raise DecoderError(str(error)) from error


def build_decoder(model: ImageModel, spec: DecoderSpec, sampling: Sampling) -> Decoder:
    """The decoder of a specification on a model. Raises DecoderError before any work starts."""
    proposer, verifier = proposer_of(model, spec), verifier_of(model, spec)
    loop = build_part(spec.loop, model, sampling=sampling, proposer=proposer, verifier=verifier)
    decoder: Decoder = completed(loop, Decoder)
    return decoder


def proposer_of(model: ImageModel, spec: DecoderSpec) -> Proposer | None:
    """The proposer that a specification names, or its drafter on its tree; None for neither."""
    named = [part for part in (spec.drafter, spec.tree) if part is not None]
    if spec.proposer is not None:
        if named:
            raise DecoderError(
                f"{spec.name} has a proposer ({spec.proposer.target}) and a drafter or tree as "
                "well: a proposer drafts alone; set drafter=none tree=none, or proposer=none"
            )
        proposer: Proposer = completed(build_part(spec.proposer, model), Proposer)
        return proposer
    if not named:
        return None
    parts = (
        None if part is None else build_part(part, model) for part in (spec.drafter, spec.tree)
    )
    return TreeProposer(*parts)


def verifier_of(model: ImageModel, spec: DecoderSpec) -> Verifier | None:
    """The verifier that a specification names; an acceptance rule judges node by node."""
    if spec.acceptance is None:
        return None
    part = build_part(spec.acceptance, model)
    whole = hasattr(part, "verify")
    verifier: Verifier = completed(part, Verifier) if whole else TokenVerifier(part)
    return verifier
