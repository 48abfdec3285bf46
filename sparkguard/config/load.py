"""Load: settings from a YAML file."""

from __future__ import annotations

import os
from pathlib import Path

from pydantic import ValidationError

from sparkguard.config.explain import problems
from sparkguard.config.model import Settings
from sparkguard.config.parse import parse
from sparkguard.config.place import together
from sparkguard.errors import InvalidSettingError


def load(path: str | os.PathLike[str]) -> Settings:
    """The settings in the YAML file at `path`.

    Raises:
        InvalidSettingError: the file cannot be read, or something in it is wrong;
            names file, line, column and key path of everything that is, one a line.
    """
    name = os.fspath(path)
    try:
        text = Path(name).read_text(encoding="utf-8")
    except OSError as error:
        sentence = f"The settings cannot be read: {error.strerror or error}."
        raise InvalidSettingError(sentence, file=name) from None
    except UnicodeDecodeError as error:
        sentence = f"The file is not UTF-8 (byte {error.start})."
        raise InvalidSettingError(sentence, file=name) from None
    return loads(text, name)


def loads(text: str, name: str = "<text>") -> Settings:
    """The settings in `text`; `name` is what errors call it.

    Raises:
        InvalidSettingError: as `load`.
    """
    parsed = parse(text, name, os.environ)
    found = parsed.problems
    settings = None
    if not isinstance(parsed.value, dict):
        found = found or [parsed.places.error("The settings must be a mapping.", ())]
    else:
        try:
            settings = Settings.model_validate(parsed.value)
        except ValidationError as error:
            known = {problem.key_path for problem in found}
            more = problems(error, Settings, parsed.places)
            found = found + [problem for problem in more if problem.key_path not in known]
    if settings is None or found:
        found.sort(key=lambda one: (one.line or 0, one.column or 0))
        raise together(found)
    settings._places = parsed.places  # noqa: SLF001  # set once, here, where they are known
    return settings
