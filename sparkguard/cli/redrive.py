"""sparkguard dlq redrive: send letters back."""

from __future__ import annotations

import shlex
import signal
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import typer

from sparkguard.cli.letters import Source, chosen, reading
from sparkguard.cli.redriven import progress_of, tell, tell_plan

if TYPE_CHECKING:
    from sparkguard.config.model import Settings
    from sparkguard.redrive.fates import Rules
    from sparkguard.redrive.redrive import Redrive
    from sparkguard.redrive.sending import Target
    from sparkguard.redrive.through import Through
    from sparkguard.sinks.base import Sink


@reading
def redrive(
    source: Source,
    which: str = typer.Argument("", help="An id or a fingerprint, or the beginning of one."),
    dry_run: bool = typer.Option(False, "--dry-run", help="Only show what would go."),
    anything: bool = typer.Option(False, "--everything", help="Where nothing else selects."),
    to: str = typer.Option("", help="The topic, instead of the settings' redrive.topic."),
    to_origin: bool = typer.Option(
        False, "--to-origin", help="Each to its first topic: all who read that get it again."
    ),
    to_servers: str = typer.Option("", help="Where that topic is, host:port."),
    rate: float | None = typer.Option(None, min=0.01, help="So many letters a second at most."),
    keep_order: bool = typer.Option(
        False, "--keep-order", help="A key's letters in order, each after the other's arrival."
    ),
    again: bool = typer.Option(False, "--again", help="Letters that were sent before, too."),
    resume: str = typer.Option("", metavar="RUN", help="Go on with this redrive."),
    through: str = typer.Option(
        "", metavar="MODULE:NAME", help="Process them here, by a flow or a function of a DataFrame."
    ),
    output: str = typer.Option("", help="Where the flow's result is appended, as Parquet."),
    schema: str = typer.Option("", help="Types of columns kept as JSON: id int, at timestamp."),
    take_over: bool = typer.Option(
        False, "--take-over", help="The process that holds the lock is gone."
    ),
) -> None:
    """Send letters back, to be processed again: the original records, with marks behind.

    They go to the topic `redrive.topic` of the settings, which the query reads beside its inputs.
    A journal in the state keeps what was acknowledged. After a kill the same command goes on, and
    sends at most the last 5,000 again, with the same header `sparkguard.redrive.id`.

    Exit code 1 if a letter that was meant could not go; 130 after Ctrl-C, which waits for what is
    under way and notes it. A second one does not wait.

    For example:

        sparkguard dlq redrive 9c01d2 --config guard.yaml --dry-run

        sparkguard dlq redrive --stage price --since 2h --config guard.yaml --rate 500

        sparkguard dlq redrive 9c01 --path dead-letters --state state/a --to x --to-servers k:9092
    """
    from sparkguard.redrive.redrive import Redrive
    from sparkguard.redrive.through import Through

    which = which.strip()
    selects = bool(which or anything or replace(source.selection(), unresolved=False))
    if not (resume or selects):
        problem = "say which letters: an id, a fingerprint, options that select, or --everything."
        raise typer.BadParameter(problem)
    if resume and (dry_run or selects):
        raise typer.BadParameter("--resume goes on with the letters that were chosen then.")
    if [bool(to), to_origin, bool(through)].count(True) > 1:
        raise typer.BadParameter("--to, --to-origin and --through exclude each other.")
    if through and (rate or keep_order or not through.partition(":")[2]):
        raise typer.BadParameter("--through takes module:name, and no --rate or --keep-order.")
    rules, sinks = _rules(source, again=again, keep_order=keep_order, rate=rate)
    target: Target | Through
    if through:
        # As with `python -m`: modules beside the command are found.
        sys.path.insert(0, "")
        target = Through.named(through, output, schema)
    else:
        target = _target(source, to, to_servers, to_origin=to_origin)
    work = Redrive(source.needed_state(), target, rules, sinks)
    if to_origin and not source.as_json:
        typer.echo("Every consumer group of the origin gets these records again.", err=True)
    if resume:
        with _interruptible(work), progress_of(source) as progress:
            done = work.resume(resume, progress=progress, take_over=take_over)
        tell(source, done)
        return
    with source.store() as store:
        given = chosen(store, source, which) if which else source.selection()
        given = replace(given, unresolved=not source.every)
        if dry_run:
            tell_plan(source, work.plan(store, given), target, store)
            return
        words = _words(source, which)
        with _interruptible(work), progress_of(source) as progress:
            done = work.start(store, given, words, progress=progress, take_over=take_over)
    tell(source, done)


@contextmanager
def _interruptible(work: Redrive) -> Iterator[None]:
    """Ctrl-C asks for a stop while the block runs: raised in a report of Kafka's, it would be lost.

    Spark stops its own jobs, so letters through a flow are not asked about.
    """

    def asked(number: int, frame: Any) -> None:
        if work.stop.is_set():
            signal.default_int_handler(number, frame)
        work.stop.set()

    if work.through:
        yield
        return
    before = signal.signal(signal.SIGINT, asked)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)


def _rules(
    source: Source, *, again: bool, keep_order: bool, rate: float | None
) -> tuple[Rules, dict[str, Sink]]:
    """What the settings and the options say; and every sink, for loops and the parking lot."""
    from sparkguard.redrive.fates import Rules

    said = source.settings()
    rules = Rules(again=again, keep_order=keep_order, rate=rate)
    if said is not None:
        most, lot = said.redrive.max_replays, said.redrive.parking_lot
        rules = replace(rules, max_replays=most, parking_lot=lot)
    return rules, replace(source, sink=None).sinks(retrying=True)


def _target(source: Source, to: str, to_servers: str, *, to_origin: bool) -> Target:
    from sparkguard.redrive.sending import Target

    said = source.settings()
    topic = to or (said.redrive.topic if said is not None and not to_origin else None)
    if not topic and not to_origin:
        raise typer.BadParameter("say where to: redrive.topic of --config, --to or --to-origin.")
    config: Mapping[str, Any]
    if said is None:
        known, config = source.servers, source.client_settings()
    else:
        known, config = _redrive_servers(source, said)
    servers = to_servers or known
    if not servers:
        raise typer.BadParameter("say where that is: redrive.bootstrap_servers or --to-servers.")
    return Target(servers=servers, topic=topic or None, config=config)


def _redrive_servers(source: Source, said: Settings) -> tuple[str, Mapping[str, Any]]:
    """As the retry service has it: unsaid, where the retry topic is."""
    from sparkguard.config.retry_topics import retry_sinks
    from sparkguard.sinks.kafka import KafkaSink

    given = said.redrive
    if given.bootstrap_servers:
        return given.bootstrap_servers, given.config
    sinks = replace(source, sink=sorted(retry_sinks(said))).sinks() if retry_sinks(said) else {}
    topics = [one for one in sinks.values() if isinstance(one, KafkaSink)]
    if len({one.bootstrap_servers for one in topics}) != 1:
        return "", given.config
    return topics[0].bootstrap_servers, given.config or topics[0].config


def _words(source: Source, which: str) -> str:
    """The selection as it was asked for: the same words mean the same redrive."""
    options = {
        "--stage": source.stage,
        "--fingerprint": source.fingerprint,
        "--since": [source.since],
        "--until": [source.until],
        "--where": [source.where],
        "--sink": source.sink,
        "--path": [source.path],
        "--topic": [source.topic],
        "--partition": source.partition,
        "--from-offset": [source.from_offset],
        "--to-offset": [source.to_offset],
    }
    said = [which] if which else []
    for option, values in options.items():
        for value in values or ():
            if value not in {"", None}:
                said += [option, str(value)]
    said += ["--all"] if source.every else []
    return shlex.join(said) or "--everything"
