"""Letters: the options that say where letters are and which are meant, the same in each command."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import Field, dataclass, fields, replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import typer

from sparkguard.cli.answer import refuse, told
from sparkguard.cli.shown import safe

if TYPE_CHECKING:
    from sparkguard.config.model import Settings
    from sparkguard.deadletters.selection import Selection
    from sparkguard.deadletters.store import Store
    from sparkguard.sinks.base import Sink


_OPTIONS: Final = {
    "config": ("--config", "The settings file: letters of its sinks."),
    "sink": ("--sink", "Only this sink of it; may be repeated. Unsaid: all but retry topics."),
    "path": ("--path", "A folder or URI with letter files, or one such file."),
    "topic": ("--topic", "A dead-letter topic."),
    "servers": ("--bootstrap-servers", "Where that topic is, host:port."),
    "client": ("--client", "A setting of librdkafka for it, key=value; may be repeated."),
    "partition": ("--partition", "Of topics only this one; may be repeated."),
    "from_offset": ("--from-offset", "In topics begin here."),
    "to_offset": ("--to-offset", "In topics end here, included."),
    "stage": ("--stage", "Only this stage's letters; may be repeated."),
    "fingerprint": ("--fingerprint", "Only these failures; may be repeated."),
    "since": ("--since", "Seen then or later: 2026-01-31T12:00, or 2h (ago)."),
    "until": ("--until", "Seen before that time."),
    "where": ("--where", "A condition in SQL, as: attempts > 3."),
    "state": ("--state", "The app's state, where there is no --config: its marks count."),
    "every": ("--all", "Letters that are marked as resolved too."),
    "as_json": ("--json", "Print JSON."),
}

_WHERE: Final = frozenset({"config", "path", "topic", "servers", "client", "state", "as_json"})
"""Those that say where letters are, and not which."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Source:
    """What the options say; `sinks` and `selection` are made of it."""

    config: Path | None = None
    sink: list[str] | None = None
    path: str = ""
    topic: str = ""
    servers: str = ""
    client: list[str] | None = None
    partition: list[int] | None = None
    from_offset: int | None = None
    to_offset: int | None = None
    stage: list[str] | None = None
    fingerprint: list[str] | None = None
    since: str = ""
    until: str = ""
    where: str = ""
    state: str = ""
    every: bool = False
    as_json: bool = False

    def sinks(self, *, retrying: bool = False) -> dict[str, Sink]:
        """The sinks that are meant.

        Args:
            retrying: unsaid, retry topics are meant too.

        Raises:
            BadParameter: the options do not say where the letters are.
            SparkguardError: the settings are wrong, or there is nothing at the path.
        """
        from sparkguard import filesystem
        from sparkguard.errors import LettersError
        from sparkguard.sinks.file import FileSink
        from sparkguard.sinks.kafka import KafkaSink

        for option, given in (
            ("--sink", self.sink),
            ("--stage", self.stage),
            ("--fingerprint", self.fingerprint),
        ):
            if "" in (given or ()):
                raise typer.BadParameter(f"{option} is empty.")
        if self.sink and not self.config:
            raise typer.BadParameter("--sink names a sink of --config.")
        if self.client and not self.topic:
            raise typer.BadParameter("--client is for --topic.")
        if [bool(self.config), bool(self.path), bool(self.topic)].count(True) != 1:
            raise typer.BadParameter("say where the letters are: --config, --path or --topic.")
        if bool(self.topic) != bool(self.servers):
            raise typer.BadParameter("--topic and --bootstrap-servers go together.")
        if self.config is not None:
            return self._of_settings(self.config, retrying=retrying)
        if self.path:
            if not filesystem.exists(self.path):
                shown = filesystem.without_password(filesystem.absolute(self.path))
                raise LettersError(f"There is nothing at {shown}.")
            return {"path": FileSink(path=self.path)}
        config = self.client_settings()
        return {"topic": KafkaSink(bootstrap_servers=self.servers, topic=self.topic, config=config)}

    def client_settings(self) -> dict[str, str]:
        """What the options say for librdkafka."""
        pairs = [one.partition("=") for one in self.client or ()]
        return {key: value for key, _, value in pairs}

    def settings(self) -> Settings | None:
        """What the settings file says, None without one."""
        from sparkguard.config.load import load

        return None if self.config is None else load(self.config)

    def state_path(self) -> str | None:
        """The state that is named, else that of the settings, else None."""
        from sparkguard.driver.state import State

        if self.state:
            return State(self.state).path
        settings = self.settings()
        return None if settings is None else State.at(settings.state.path, settings.app).path

    def needed_state(self) -> str:
        """As `state_path`.

        Raises:
            BadParameter: no state is named.
        """
        found = self.state_path()
        if found is None:
            raise typer.BadParameter("say where the app's state is: --config or --state.")
        return found

    def _of_settings(self, file: Path, *, retrying: bool) -> dict[str, Sink]:
        from sparkguard.config.load import load
        from sparkguard.config.resolve import sinks
        from sparkguard.config.retry_topics import retry_sinks
        from sparkguard.errors import UnknownNameError
        from sparkguard.plugins import load as load_plugins

        settings = load(file)
        found = sinks(settings, load_plugins())
        for name in self.sink or ():
            if name not in found:
                raise UnknownNameError("sink", name, found)
        waiting = set() if retrying else retry_sinks(settings)
        return {
            name: found[name] for name in self.sink or found if self.sink or name not in waiting
        }

    def selection(self) -> Selection:
        """The letters that are meant."""
        from sparkguard.deadletters.selection import Selection

        return Selection(
            stages=tuple(self.stage or ()),
            fingerprints=tuple(self.fingerprint or ()),
            since=moment(self.since, "--since"),
            until=moment(self.until, "--until"),
            unresolved=not self.every,
            where=self.where,
        )

    @contextmanager
    def store(self, *, retrying: bool = False) -> Iterator[Store]:
        """The store over those sinks; what was left out is said on stderr when it is done."""
        from sparkguard.deadletters.store import Store
        from sparkguard.deadletters.topic import Bounds
        from sparkguard.plugins import load

        bounds = Bounds(
            since=moment(self.since, "--since"),
            partitions=frozenset(self.partition or ()),
            first=self.from_offset,
            last=self.to_offset,
        )
        dialects = [*load().dialects.values()]
        state = self.state_path()
        sinks = self.sinks(retrying=retrying)
        with Store(sinks, bounds=bounds, dialects=dialects, state=state) as store:
            try:
                yield store
            finally:
                for one in store.skipped:
                    line = f"left out: {one.place} ({one.count:,}): {one.why}"
                    typer.echo(safe(line), err=True)


def chosen(store: Store, source: Source, which: str) -> Selection:
    """The letter of that id, else the letters of that fingerprint, and the options; exits if none.

    The beginning of either is enough, where it is the beginning of one.
    """
    selection = replace(source.selection(), unresolved=False)
    found = store.ids(replace(selection, ids=(which,)), 2)
    if which in found:
        return replace(selection, ids=(which,), whole=True)
    groups = store.groups(replace(selection, fingerprints=(which,)))
    if len(found) == 1 and not groups:
        return replace(selection, ids=tuple(found), whole=True)
    if exact := [one for one in groups if one.fingerprint == which]:
        groups = exact
    elif found:
        more = " and a fingerprint" if groups else ""
        said = f"{which!r} begins {'an' if len(found) == 1 else 'more than one'} id{more}"
        refuse([f"{said}; give more of it."], as_json=source.as_json)
    if not groups:
        told = f"There is no letter whose id or fingerprint begins with {which!r}."
        refuse([told], as_json=source.as_json)
    if len(groups) > 1:
        names = ", ".join(one.fingerprint for one in groups[:5])
        refuse([f"{which!r} begins more than one fingerprint: {names}."], as_json=source.as_json)
    return replace(selection, fingerprints=(groups[0].fingerprint,), whole=True)


def reading(command: Callable[..., None], *, whole: bool = False) -> Callable[..., None]:
    """Give a command, whose first argument is a `Source`, the options of one.

    Args:
        whole: without those that select: what it says is only true of all letters.
    """
    named = [one for one in fields(Source) if not whole or one.name in _WHERE]

    @functools.wraps(command)
    def run(**given: Any) -> None:
        source = Source(**{one.name: given.pop(one.name) for one in named})
        with told(as_json=source.as_json):
            command(source, **given)

    first, *own = inspect.signature(command, eval_str=True).parameters.values()
    kinds: Mapping[str, Any] = inspect.get_annotations(Source, eval_str=True)
    added = [
        inspect.Parameter(
            one.name, first.KEYWORD_ONLY, default=_option(one), annotation=kinds[one.name]
        )
        for one in named
    ]
    own = [one.replace(kind=first.KEYWORD_ONLY) for one in own]
    run.__signature__ = inspect.Signature([*own, *added])  # type: ignore[attr-defined]
    run.__annotations__ = {one.name: one.annotation for one in (*own, *added)}
    return run


def _option(of: Field[Any]) -> Any:
    flag, told = _OPTIONS[of.name]
    return typer.Option(of.default, flag, help=told)


def moment(said: str, option: str) -> datetime | None:
    """A time that a person wrote: ISO 8601, UTC unless it says so, or how long ago.

    Raises:
        BadParameter: it is neither.
    """
    from sparkguard.config.duration import seconds
    from sparkguard.core.instant import utc

    if not said:
        return None
    try:
        return utc(datetime.fromisoformat(said))
    except ValueError:
        pass
    try:
        return datetime.now(UTC) - timedelta(seconds=seconds(said))
    except (ValueError, OverflowError):
        problem = f"{said!r} is neither a time (2026-01-31T12:00) nor how long ago (90m, 2h)."
        raise typer.BadParameter(f"{option}: {problem}") from None
