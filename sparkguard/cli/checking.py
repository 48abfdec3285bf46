"""Checking: everything that can be known about a settings file without running it."""

from __future__ import annotations

import importlib
from collections.abc import Iterator
from dataclasses import dataclass, field
from difflib import get_close_matches
from pathlib import Path
from typing import TYPE_CHECKING, Any

from sparkguard.config.load import load
from sparkguard.config.resolve import check_foreach_batch, policy, sinks
from sparkguard.core.failure import Category
from sparkguard.errors import ConfigError, SparkguardError
from sparkguard.plugins import load as load_plugins

if TYPE_CHECKING:
    from sparkguard.config.model import Settings
    from sparkguard.hookspecs import Members
    from sparkguard.stages.base import Stage


@dataclass(slots=True, kw_only=True)
class Checked:
    """What was found: names of stages and sinks in the file, and what is wrong."""

    stages: list[str]
    sinks: list[str] = field(default_factory=list)
    problems: list[str] = field(default_factory=list)


def checked(file: Path, module: str | None) -> Checked:
    """The settings in `file`, checked against the installed members and `module`.

    Raises:
        InvalidSettingError: the file is no valid settings file.
        PluginError: an installed plugin is broken.
        ConfigError: `module` cannot be imported.
    """
    settings, members = load(file), load_plugins()
    found = Checked(stages=sorted(settings.stages))
    problems: list[str] = []
    try:
        found.sinks = sorted(sinks(settings, members))
    except ConfigError as error:
        problems += str(error).splitlines()
    stages = stages_in(module) if module else None
    # A stage without a name stands for `defaults:`, which may be all that the file has.
    for name in dict.fromkeys(["", *settings.stages, *(stages or {})]):
        stage = stages.get(name) if stages is not None else None
        if name and stages is not None and stage is None:
            problems.append(_unused(settings, name, stages, str(module)))
            continue
        problems += _stage_problems(settings, name, stage, members)
    found.problems = list(dict.fromkeys(problems))
    return found


def stages_in(module: str) -> dict[str, Stage[..., Any]]:
    """The stages that stand in `module` or in its flows, by name.

    Raises:
        ConfigError: the module cannot be imported.
    """
    try:
        imported = importlib.import_module(module)
    except (Exception, SystemExit) as error:
        sentence = f"The module {module!r} cannot be imported: {type(error).__name__}: {error}."
        raise ConfigError(sentence) from error
    return dict(pair for value in vars(imported).values() for pair in _stages(value))


def _stages(value: Any) -> Iterator[tuple[str, Stage[..., Any]]]:
    """Stages by the names that settings may give them: a flow's by ``flow.stage`` too."""
    from sparkguard.flow import Flow
    from sparkguard.stages.base import Stage

    if isinstance(value, Stage):
        yield value.name, value
    elif isinstance(value, Flow):
        for stage in value.stages:
            yield stage.name, stage
            yield f"{value.name}.{stage.name}", stage


def _stage_problems(
    settings: Settings, name: str, stage: Stage[..., Any] | None, members: Members
) -> list[str]:
    category = stage.category if stage is not None else Category.PROCESSING
    try:
        found = policy(settings, name, category, members)
        if stage is not None and stage.kind == "foreach_batch":
            check_foreach_batch(name, found)
    except SparkguardError as error:
        return str(error).splitlines()
    return []


def _unused(settings: Settings, name: str, stages: dict[str, Stage[..., Any]], module: str) -> str:
    near = get_close_matches(name, stages, n=1)
    hint = f" Did you mean {near[0]!r}?" if near else ""
    known = ", ".join(sorted(stages)) or "none"
    problem = f"No stage of the module {module!r} has this name.{hint} Known: {known}."
    return str(settings.places.error(problem, ("stages", name), at_key=True))
