"""A run: one query under the supervisor, through all of its starts."""

from __future__ import annotations

import functools
import sys
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NoReturn

from sparkguard.core.watch import Event
from sparkguard.driver import trouble
from sparkguard.driver.clock import Clock
from sparkguard.driver.ending import Ending
from sparkguard.driver.listener import drain
from sparkguard.driver.report import Report, message
from sparkguard.driver.restarts import Restarts
from sparkguard.driver.stop import Stop
from sparkguard.driver.trouble import Trouble
from sparkguard.errors import RestartLimitError, StageFailedError

if TYPE_CHECKING:
    from pyspark.sql.streaming.query import StreamingQuery

_PATIENCE = 10.0
_PROMPTLY = 1.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Desk:
    """What every run of a supervisor shares.

    Attributes:
        tell: tells the watchers.
        started: told of every query that starts.
        committed: told of a query's id and of its latest batch, once Spark has reported it.
        breach: the budget that a run of a query was found to exceed, by its run's id.
        careful: asks a query's tasks for care; whether they were asked before.
        flows: names of the stages by flow.
    """

    app: str
    stop: Stop
    clock: Clock
    tell: Callable[[Event], None]
    started: Callable[[StreamingQuery], None]
    committed: Callable[[str, int], None]
    breach: Callable[[str], StageFailedError | None]
    careful: Callable[[str], bool]
    flows: Callable[[], Mapping[str, tuple[str, ...]]]


class Run:
    """One `build` and its query.

    Attributes:
        done: it will not be started again.
        error: what ended it for good while it was asked to stop.
    """

    def __init__(
        self, build: Callable[[], StreamingQuery], name: str, restarts: Restarts, desk: Desk
    ) -> None:
        self._build = build
        self._name = name
        self._restarts = restarts
        self._desk = desk
        self._report = Report(app=desk.app, query=name, tell=desk.tell)
        self._query: Any = None
        self._id: str | None = None
        self._run_id = ""
        self._start_at = 0.0
        self._starts = 0
        self._batch: int | None = None
        self._asked_to_end = False
        self._ending: Ending | None = None
        self.done = False
        self.error: BaseException | None = None

    @property
    def active(self) -> bool:
        """Whether it has a query that was not seen to end."""
        return self._query is not None

    def step(self) -> None:
        """Look once: start what is due, note progress, meet an end.

        Raises:
            RestartLimitError, StageFailedError, Exception: the query is down for good.
        """
        if self._query is None:
            if self._desk.clock.monotonic() >= self._start_at:
                self._start()
            return
        try:
            active = bool(self._query.isActive)
        except Exception as error:
            self._lost(error)
        # In this order: what was committed before the end counts.
        self._note_progress()
        if not active:
            self._ended()
        elif breach := self._desk.breach(self._run_id):
            self._breached(breach)

    def end(self, *, force: bool) -> bool:
        """Stop the query if no batch of it runs, or at once; whether it has ended."""
        if self._ending is None:
            self._begin_ending(force=force)
        if self._ending is not None and self._ending.over:
            self._note_progress()
            drain(self._query)
            self._close(self._ending.problem)
        return self._query is None

    def abandon(self) -> None:
        """Wait no longer for a query that does not stop; the end of the process ends it."""
        self._close("it did not stop in time; its batch comes again")

    def _start(self) -> None:
        try:
            query: Any = self._build()
        except Exception as error:
            self._meet(trouble.read(error))
            return
        # Of the class: the query's own answer could be an exception of a dead JVM.
        if not hasattr(type(query), "isActive"):
            self.done = True
            kind = type(query).__name__
            msg = f"The build {self._name!r} returned {kind}; it must return the started query."
            raise TypeError(msg)
        self._query, self._batch = query, None
        self._starts += 1
        try:
            self._id, self._run_id = str(query.id), str(query.runId)
            self._desk.stop.follow(query)
            self._desk.started(query)
        except Exception as error:
            self._query = None
            Ending(query, cut=True).wait(_PATIENCE)
            self._meet(trouble.read(error))
            return
        self._report.started(query, self._starts, self._desk.flows())

    def _note_progress(self) -> bool:
        """A batch that was committed since the last look clears the first bound of the restarts."""
        batch = self._last_batch()
        if batch is None or batch == self._batch:
            return False
        self._batch = batch
        self._restarts.progressed()
        self._desk.committed(str(self._id), batch)
        return True

    def _last_batch(self) -> int | None:
        """The last batch of this run of the query; Spark reports a batch after its commit."""
        try:
            progress = self._query.lastProgress
            if progress is None or str(progress["runId"]) != self._run_id:
                return None
            if "addBatch" not in progress.get("durationMs", {"addBatch": 0}):
                # A report of an idle query bears the number of the batch that comes next.
                return self._batch
            return int(progress["batchId"])
        except Exception:
            # Progress is a comfort; whether the query lives is asked separately.
            return None

    def _ended(self) -> None:
        query, self._query = self._query, None
        drain(query)
        error = self._desk.breach(self._run_id) or _exception(query)
        if error is None:
            self.done = True
        else:
            self._meet(trouble.read(error))

    def _breached(self, breach: StageFailedError) -> None:
        query, self._query = self._query, None
        Ending(query, cut=True).wait(_PATIENCE)
        drain(query)
        self._meet(trouble.read(breach))

    def _meet(self, met: Trouble) -> None:
        """A query failed or did not start: what now?"""
        stopped = met.decided is not None and met.stopped
        # A worker may see the stop marker before the supervisor does.
        if not (stopped and self._desk.stop.look()):
            self._report.failed(self._id, met)
        if self._desk.stop.requested:
            self.done = True
            self.error = None if stopped or met.restartable else _final(met)
        elif (reason := self._careless(met)) is None or met.restartable:
            self._restart(met)
        else:
            self._refuse(met, reason)
            raise _final(met)

    def _careless(self, met: Trouble) -> str | None:
        """Why no restart helps; None where its tasks can look for what ended a worker."""
        if not met.crashed or self._id is None:
            return f"no restart heals a {met.cause} cause"
        try:
            asked = self._desk.careful(self._id)
        except Exception as error:
            return (
                f"the state took no note of the worker that died: {type(error).__name__}: {error}"
            )
        return "a worker died, though its tasks were careful already" if asked else None

    def _restart(self, met: Trouble) -> None:
        refusal, wait = self._restarts.refusal(), 0.0
        if refusal is None:
            try:
                wait = self._restarts.next()
            except Exception as error:
                refusal = (
                    f"its restart cannot be counted, the state raised "
                    f"{type(error).__name__}: {error}"
                )
        if refusal is None:
            self._start_at = self._desk.clock.monotonic() + wait
            self._report.scheduled(self._id, met, self._restarts.since_commit, wait)
            return
        self._refuse(met, refusal)
        sentence = f"Query {self._name!r} stays down: {refusal}. The last cause: {message(met)}"
        # SystemExit prints nothing by itself, and this is the last thing a person reads.
        sys.stderr.write(sentence + "\n")
        raise RestartLimitError(sentence) from _final(met)

    def _refuse(self, met: Trouble, reason: str) -> None:
        self.done = True
        self._report.refused(self._id, met, self._restarts.since_commit, reason)

    def _lost(self, error: Exception) -> NoReturn:
        self._query, met = None, trouble.read(error)
        self._report.failed(self._id, met)
        self._refuse(met, "Spark does not answer, and only a new process heals that")
        error.add_note(f"Spark does not answer for the query {self._name!r}: its JVM is gone.")
        raise error

    def _begin_ending(self, *, force: bool) -> None:
        """Call `stop` if it may be called now."""
        # What is committed from here on was committed after the stop was asked for.
        committed = self._note_progress() and self._asked_to_end
        self._asked_to_end = True
        try:
            if not self._query.isActive:
                self._ended()
                self._report.stopped(self._id, self._batch, None)
                return
            between = committed or self._rests()
        except Exception as error:
            self._close(f"Spark does not answer: {type(error).__name__}")
            return
        if between or force:
            self._ending = Ending(self._query, cut=not between)
            # It seldom takes longer; what does is looked after between looks at the others.
            self._ending.wait(_PROMPTLY)

    def _rests(self) -> bool:
        """Whether no batch runs now, or one waits at its entry.

        A query without a guarded batch function may begin its next batch at this very
        moment. If it is so busy that it is never seen to rest, the moment after a commit
        is the best there is: the batch cut off then has just begun.
        """
        held = self._desk.stop.holds(str(self._id))
        return held or not self._query.status["isTriggerActive"]

    def _close(self, problem: str | None) -> None:
        self._query, self._ending, self.done = None, None, True
        self._report.stopped(self._id, self._batch, problem)


def _final(met: Trouble) -> BaseException:
    """What is raised for a failure that is final: the stage's, where it was a stage's."""
    if met.decided is None or met.decided is met.error:
        return met.error
    told = met.decided.plain()
    told.__cause__ = met.error
    return told


def _exception(query: Any) -> BaseException | None:
    """Why a query ended; None for a normal end. `awaitTermination` has the live chain."""
    try:
        # Not for ever: one that was stopped from outside may hang in its last batch.
        query.awaitTermination(_PATIENCE)
    except Exception as error:
        return error
    found: BaseException | None = query.exception()
    return found


def names(builds: Sequence[Callable[[], Any]]) -> list[str]:
    """A name for each build: its function's, numbered where several have the same.

    The restart limit is kept under it, so it should stay the same from process to process.
    """
    own = [_name(build) for build in builds]
    shared, seen = Counter(own), Counter[str]()
    found = []
    for name in own:
        seen[name] += 1
        found.append(f"{name}-{seen[name]}" if shared[name] > 1 else name)
    return found


def _name(build: Callable[[], Any]) -> str:
    if isinstance(build, functools.partial):
        return _name(build.func)
    return str(getattr(build, "__name__", type(build).__name__)).strip("<>")
