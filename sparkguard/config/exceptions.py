"""Exception names in the settings, as the names that failures carry."""

from __future__ import annotations

import builtins
import importlib
import sys
from difflib import get_close_matches
from pathlib import Path
from types import ModuleType
from typing import Any

from sparkguard.core.fingerprint import type_names
from sparkguard.errors import UnknownNameError

_FEW = 20


def exception_name(name: str) -> str:
    """The qualified name of the exception class that `name` means; imports its module.

    `name` is ``module.Class``, a builtin, or a class of the program that is running.

    Raises:
        UnknownNameError: there is no such class; lists the exceptions of its module.
        ValueError: its module cannot be imported, or it is no exception class.
    """
    if "." not in name:
        found = getattr(builtins, name, None) or getattr(sys.modules["__main__"], name, None)
        if found is None:
            raise _unknown(name, builtins)
    else:
        module, inside = _module(name)
        found = module
        for part in inside.split("."):
            found = getattr(found, part, None)
        if found is None:
            raise _unknown(name, module)
    if not isinstance(found, type) or not issubclass(found, BaseException):
        raise ValueError(f"{name!r} is no exception class.")  # noqa: TRY004  # of a setting
    return type_names(found)[0]


def _module(name: str) -> tuple[Any, str]:
    parts = name.split(".")
    for length in range(len(parts) - 1, 0, -1):
        module = ".".join(parts[:length])
        try:
            return _imported(module), ".".join(parts[length:])
        except ModuleNotFoundError as error:
            if error.name and (module == error.name or module.startswith(f"{error.name}.")):
                continue
            raise _not_imported(name, error) from error
        except Exception as error:
            raise _not_imported(name, error) from error
    raise ValueError(f"The exception {name!r} cannot be imported: there is no module {parts[0]!r}.")


def _imported(module: str) -> ModuleType:
    # The program that is running is imported already, under another name; importing it
    # by its own would run it a second time, and its classes would be different ones.
    main = sys.modules["__main__"]
    spec = getattr(main, "__spec__", None)
    own = spec.name if spec else Path(getattr(main, "__file__", None) or "").stem
    return main if module == own else importlib.import_module(module)


def _not_imported(name: str, error: Exception) -> ValueError:
    why = f"{type(error).__name__}: {error}"
    return ValueError(f"The exception {name!r} cannot be imported: {why}.")


def _unknown(name: str, module: Any) -> UnknownNameError:
    prefix = "" if module is builtins else f"{name.rpartition('.')[0]}."
    known = [
        f"{prefix}{key}"
        for key, value in vars(module).items()
        if isinstance(value, type) and issubclass(value, BaseException)
    ]
    if len(known) > _FEW:
        known = get_close_matches(name, known, n=_FEW)
    return UnknownNameError("exception", name, known)
