"""Builds a decoder out of its parts, each named by a dotted path: composed, not subclassed."""

from __future__ import annotations

import importlib
import inspect
import pkgutil
import sys
from collections.abc import Iterable, Mapping
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
    fits,
)
from decoders.errors import did_you_mean, installed_folders, plugin_line, unknown
from decoders.kinds import hints_of, validate
from decoders.propose.tree_proposer import TreeProposer
from decoders.spec import DecoderSpec as DecoderSpec
from decoders.spec import PartSpec as PartSpec
from decoders.verify.token_verifier import TokenVerifier


class BrokenModule(DecoderError):
    """A module that is there and cannot be imported: it, or what it needs, raises."""


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
        raise DecoderError(f"{module_name} has no {attribute!r}{did_you_mean(attribute, public)}")
    return getattr(module, attribute)


def is_synthetic(spec: DecoderSpec) -> bool:
    """Tells whether a decoder accepts drafts at given rates; not where its verifier cannot be
    imported."""
    if spec.acceptance is None:
        return False
    try:
        return bool(getattr(resolve(spec.acceptance.target), "synthetic", False))
    except DecoderError:
        return False


def _import(name: str, path: str) -> ModuleType:
    """Imports the module of a path. Raises as `resolve`."""
    try:
        return importlib.import_module(name)
    except Exception as error:  # a plug-in's file may raise anything
        missing = getattr(error, "name", None) or name
        if not isinstance(error, ModuleNotFoundError) or not f"{name}.".startswith(f"{missing}."):
            message = error.msg if isinstance(error, SyntaxError) else str(error)
            where = plugin_line(error)
            raise BrokenModule(
                f"cannot import {name!r} (for {path!r}): {type(error).__name__}: {message}"
                + (f", at {where}" if where else "")
                + "; mend the file or install what it needs"
            ) from error
        package, _, leaf = missing.rpartition(".")
        if package:
            folders, hint = list(getattr(importlib.import_module(package), "__path__", [])), ""
        else:  # the user's folders: without those of Python and of packages
            others = installed_folders()
            every = dict.fromkeys(Path(entry or ".").absolute() for entry in sys.path)
            users = [f for f in every if f.is_dir() and not any(map(f.is_relative_to, others))]
            folders = [str(folder) for folder in users]
            hint = (
                f" and Python's own; a folder with {leaf}.py is looked in too with PYTHONPATH=DIR "
                "before the command"
            )
        near = did_you_mean(leaf, [module.name for module in pkgutil.iter_modules(folders)])
        raise DecoderError(
            f"cannot import {missing!r} (for {path!r}){near or '.'} Looked in "
            f"{', '.join(folders) or 'no folder'}{hint}"
        ) from error


def build_part(part: PartSpec, model: ImageModel, **extra: Any) -> Any:
    """Returns cls(model, **extra, **kwargs). Raises DecoderError on a keyword that the class does
    not take."""
    cls = resolve(part.target)
    if not callable(cls):
        raise DecoderError(f"{part.target} must be a class, found {type(cls).__name__}: {cls!r}")
    check_keywords(part.target, cls, part.kwargs, ("model", *extra))
    return cls(model, **extra, **part.kwargs)


def check_keywords(
    name: str, target: Any, kwargs: Mapping[str, Any], others: Iterable[str] = ()
) -> None:
    """Raises DecoderError where `target` takes no such keyword, or a value is not what it is
    annotated with; a default always is. others: keywords that are none of the user's."""
    parameters = inspect.signature(target).parameters
    hints = hints_of(target)
    for key, value in kwargs.items():
        if key in parameters:
            if key in hints and value is not parameters[key].default:
                validate(f"{name}: {key}", value, hints[key])
        elif not any(p.kind is inspect.Parameter.VAR_KEYWORD for p in parameters.values()):
            raise DecoderError(unknown(f"setting of {name}", key, {*parameters} - {*others}))


def build_decoder(model: ImageModel, spec: DecoderSpec, sampling: Sampling) -> Decoder:
    """Builds the decoder of a specification on a model. Raises DecoderError before any work
    starts."""
    proposer: Proposer | None = None
    drafts = spec.drafter, spec.tree
    if spec.proposer is not None:
        if any(drafts):
            raise DecoderError(
                f"{spec.name} has a proposer ({spec.proposer.target}) and a drafter or tree as "
                "well: a proposer drafts alone; set drafter=none tree=none, or proposer=none"
            )
        proposer = completed(build_part(spec.proposer, model), Proposer)
    elif any(drafts):
        parts = [None if part is None else build_part(part, model) for part in drafts]
        proposer = TreeProposer(*parts)
    verifier = verifier_of(model, spec)
    loop = build_part(spec.loop, model, sampling=sampling, proposer=proposer, verifier=verifier)
    decoder: Decoder = completed(loop, Decoder)
    return decoder


def verifier_of(model: ImageModel, spec: DecoderSpec) -> Verifier | None:
    """Builds the verifier of a specification; an acceptance rule judges node by node."""
    if spec.acceptance is None:
        return None
    part = build_part(spec.acceptance, model)
    verifier: Verifier = completed(part, Verifier) if fits(part, Verifier) else TokenVerifier(part)
    return verifier
