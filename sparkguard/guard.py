"""The guard: settings in; flows, batch functions and running queries out."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from os import PathLike
from typing import TYPE_CHECKING, Any

from sparkguard import plugins
from sparkguard.config import resolve
from sparkguard.config.load import load
from sparkguard.config.model import Settings
from sparkguard.core.policy import Policy
from sparkguard.core.sub_batch import SubBatch
from sparkguard.driver.accounts import Accounts
from sparkguard.driver.batch import BatchFunction, BatchStage
from sparkguard.driver.breaches import Breaches
from sparkguard.driver.clock import SystemClock
from sparkguard.driver.connect import is_connect, is_remote, refuse, refuse_memory
from sparkguard.driver.journal import Journals
from sparkguard.driver.ledger import Ledger
from sparkguard.driver.listener import (
    find_lost,
    listen,
    session_key,
    session_of,
    settle_standing,
)
from sparkguard.driver.mailbox import AccumulatorMailbox, FileMailbox, Mailbox
from sparkguard.driver.production import Bound as BoundProduction
from sparkguard.driver.production import Production
from sparkguard.driver.reach import Reach
from sparkguard.driver.restarts import Limit, Restarts
from sparkguard.driver.run import Desk, Run, names
from sparkguard.driver.settle import Settler
from sparkguard.driver.shelf import ParquetShelf
from sparkguard.driver.state import State
from sparkguard.driver.stop import Stop
from sparkguard.driver.supervisor import Supervisor
from sparkguard.errors import StageError
from sparkguard.events import BATCH_FINISHED, STAGE_UNUSED, log
from sparkguard.filesystem import exists
from sparkguard.flow import Bound, Flow
from sparkguard.frame import Carry
from sparkguard.hookspecs import Members
from sparkguard.keyed import Stateful, check_settings, emitted_shape, with_versions
from sparkguard.stages.base import Stage
from sparkguard.stages.foreach_batch import foreach_batch as as_foreach_batch
from sparkguard.stages.produce import check_producer
from sparkguard.steps import output_shape

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming.query import StreamingQuery

    from sparkguard.audit.check import Audit
    from sparkguard.audit.outputs import OutputTopic


class Guard:
    """Binds settings to stages.

    Args:
        settings: what the YAML file says; the built-in defaults without it.
        members: handlers, sinks, formats and watchers to know; the built-ins and
            every installed plugin without it.

    Raises:
        ConfigError: the settings are wrong; says where and what would be right.
        PluginError: an installed plugin is broken.
    """

    def __init__(self, settings: Settings | None = None, *, members: Members | None = None) -> None:
        self.settings = settings or Settings()
        self.members = members or plugins.load()
        self.sinks = resolve.sinks(self.settings, self.members)
        self._state = State.at(self.settings.state.path, self.settings.app)
        self._accounts = Accounts(self._state)
        self._settler = Settler(
            self.settings.app, self._accounts, self.members, Breaches(self._state)
        )
        self._journals = Journals(self._state)
        self._stop = Stop(self._state)
        self._flows: dict[str, tuple[str, ...]] = {}
        self._places: dict[str, str] = {}
        self._batch_stages: set[str] = set()
        self._mailboxes: dict[str, Mailbox] = {}
        self._reach = Reach(self.sinks)
        self._listening: set[str] = set()

    def __getstate__(self) -> dict[str, Any]:
        members = None if self.members is plugins.load() else self.members
        return self.__dict__ | {"members": members, "_mailboxes": {}, "_listening": set()}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state, members=state["members"] or plugins.load())

    @classmethod
    def from_yaml(cls, path: str | PathLike[str]) -> Guard:
        """A guard with the settings of a YAML file.

        Raises:
            ConfigError: every problem of the file, with line, column and key path.
        """
        return cls(load(path))

    @property
    def ledger(self) -> Ledger:
        """The account of every record, by flow, stage and batch.

        Raises:
            ConfigError: the state cannot be written.
        """
        if exists(self._state.entries):
            self._accounts.files()
            settle_standing(self._settler)
        waiting = self._accounts.unbatched()
        if waiting:
            # A batch job has no `run`, which would have looked.
            self._state.check()
        for query_id, batch_id in waiting:
            self._settler.settle(query_id, batch_id)
        return Ledger(self._state, self._accounts.pending)

    def audit(
        self,
        *,
        checkpoints: Sequence[str] = (),
        outputs: Sequence[str | OutputTopic] = (),
        flows: Sequence[str] = (),
        holes: bool = False,
    ) -> Audit:
        """Compute the account again, from ledger, sinks and what is named; as `sparkguard audit`.

        Args:
            checkpoints, outputs, flows, holes: as in `sparkguard.audit.check.Asked`.

        Raises:
            LettersError: something that was named is not there, or nothing was counted yet.
        """
        from sparkguard.audit.audit import audit
        from sparkguard.audit.check import Asked

        asked = Asked(checkpoints=checkpoints, outputs=outputs, flows=flows, holes=holes)
        dialects = [*self.members.dialects.values()]
        return audit(self.settings.app, self.ledger, self.sinks, asked, dialects=dialects)

    def flow(
        self, *stages: Stage[Any, Any], name: str, carry: str | Carry | Sequence[str | Carry] = ()
    ) -> Flow:
        """Consecutive record stages as one function from DataFrame to DataFrame.

        Args:
            name: of the flow, in letters, ledger and metrics; unique in the app.
            carry: names of input columns that the output repeats; `ORIGIN` or
                `RECORD` for the record itself, hidden from the user's functions.

        Raises:
            StageError: the stages do not fit together or have no type that Spark knows.
            ConfigError: the settings of a stage are wrong.
        """
        shape = output_shape(stages, name)
        self._take_name(name, tuple(stage.name for stage in stages))
        policies = {stage.name: self._policy(stage, name) for stage in stages}
        self._settler.watch(name, {stage: policy.budget for stage, policy in policies.items()})
        return Flow(
            name=name,
            stages=stages,
            carry=(carry,) if isinstance(carry, str | Carry) else tuple(carry),
            policies=policies,
            shape=shape,
            bound=self._bound(),
        )

    def foreach_batch(
        self,
        stage: Stage[Any, Any]
        | Callable[[DataFrame, int], None]
        | Callable[[DataFrame, int, SubBatch], None],
    ) -> BatchFunction:
        """A batch function for ``writeStream.foreachBatch``: retried, routed, accounted for.

        The function may run more than once with a batch, so its writes should be
        idempotent by batch id or key. With ``isolate: true`` the rows that it cannot
        write leave, and the others are written.

        Raises:
            StageError: a generator or coroutine function, which Spark would commit unrun.
            ConfigError: the settings would skip or dead-letter a whole batch without saying so,
                or isolate one whose rows may not be written again.
        """
        made = stage if isinstance(stage, Stage) else as_foreach_batch(stage)
        if made.kind != "foreach_batch" or made.function is None:
            raise StageError(f"a {made.kind} is no foreach_batch stage.", stage=made.name)
        policy = self._policy(made, None)
        resolve.check_foreach_batch(made.name, policy)
        self._batch_stages.add(made.name)
        bound = BatchStage(
            app=self.settings.app,
            name=made.name,
            category=made.category,
            policy=policy,
            function=made.function,
            sinks=self.sinks,
            wants_sub_batch=made.signature().wants_sub_batch,
            check=partial(self._reach.check_sinks, names=self._needed(policy)),
        )
        if is_remote():
            refuse(bound)
        shelf = ParquetShelf(made.name, self._state.path)
        return BatchFunction(bound, self._settler, self._stop, journals=self._journals, shelf=shelf)

    def produce(self, stage: Stage[Any, Any]) -> Production:
        """Rows to Kafka: ``.stream(frame)`` for a query, ``.write(frame)`` for a batch frame.

        Each row is sent at least once and has its own delivery report; a row that Kafka
        refuses is one failure, and the others go on.

        Raises:
            StageError: it is no produce stage, another flow has its name, or it has no servers.
            ConfigError: the settings of the stage are wrong.
        """
        outgoing = getattr(stage, "outgoing", None)
        if outgoing is None:
            kind = getattr(stage, "kind", type(stage).__name__)
            raise StageError(f"guard.produce takes a stage made by sg.produce, not {kind}.")
        name = stage.name
        self._take_name(name, (name,))
        policy = replace(self._policy(stage, None), whole_batch=None)
        producer = resolve.producer(self.settings, name)
        check_producer(name, producer)
        self._settler.watch(name, {name: policy.budget})
        bound = BoundProduction(
            app=self.settings.app,
            name=name,
            outgoing=outgoing,
            policy=policy,
            producer={**stage.producer, **producer},
            sinks=self.sinks,
            stop_marker=self._state.stop_marker,
            mailbox=self._mailbox,
            check=self._check,
        )

        def batch_function(send: Callable[[DataFrame, int], None]) -> BatchFunction:
            made = BatchStage(
                app=self.settings.app,
                name=name,
                category=stage.category,
                policy=policy,
                function=send,
                sinks=self.sinks,
                takes_origin=True,
            )
            return BatchFunction(made, self._settler, self._stop)

        return Production(bound, batch_function)

    def stateful(self, stage: Stage[Any, Any]) -> Stateful:
        """A stateful stage as one function from a stream to what it emits: ``df.transform(…)``.

        Each key has one owner, and its state changes with an event whole or not at all.

        Raises:
            StageError: it is no stateful stage, or another flow has its name.
            ConfigError: the settings of the stage are wrong.
        """
        shape = emitted_shape(stage)
        # By its place: a notebook's cell that runs again makes another object.
        place = f"{stage.__module__}.{getattr(stage, '__qualname__', '')}"
        self._take_name(stage.name, (stage.name,), place)
        policy = self._policy(stage, None)
        check_settings(stage.name, self.settings, policy)
        policy = with_versions(policy)
        self._settler.watch(stage.name, {stage.name: policy.budget})
        return Stateful(
            stage=stage, shape=shape, policy=policy, bound=self._bound(), state=self._state
        )

    def run(self, *builds: Callable[[], StreamingQuery], grace: float = 60.0) -> None:
        """Run queries until they end: restart them within their limit, stop them between batches.

        Each `build` starts one query and returns it; it is called again for a
        restart. SIGTERM and SIGINT, or ``sparkguard stop``, end the run between two
        batches, and it returns. A second signal does not wait.

        Args:
            grace: seconds to wait for the running batches when asked to stop; a
                batch that takes longer is cut off and comes again at the next start.

        Raises:
            RestartLimitError: a limit is used up; uncaught, the process exits with 75.
            StageFailedError: a stage failed for a reason that no restart heals.
        """
        for build in builds:
            if not callable(build):
                kind = type(build).__name__
                raise StageError(f"guard.run takes functions that start a query, not {kind}.")
        self._warn_of_unused()
        FileMailbox(self._state).sweep()
        desk = Desk(
            app=self.settings.app,
            stop=self._stop,
            clock=SystemClock(),
            tell=lambda event: plugins.notify(self.members, event),
            started=self._started,
            committed=self._committed,
            breach=self._settler.breaches.take,
            careful=self._settler.breaches.careful,
            flows=lambda: dict(self._flows),
        )
        limit = Limit.of(self.settings.restart)
        runs = [
            Run(build, name, Restarts(self._state, name, limit, desk.clock), desk)
            for build, name in zip(builds, names(builds), strict=True)
        ]
        Supervisor(runs, self._stop, desk.clock, grace=grace).run()

    def _take_name(self, name: str, stages: tuple[str, ...], place: str = "") -> None:
        known = self._flows.get(name, stages), self._places.setdefault(name, place)
        if known != (stages, place):
            raise StageError(f"The guard has another flow named {name!r}; name this one otherwise.")
        self._flows[name] = stages

    def _bound(self) -> Bound:
        return Bound(
            app=self.settings.app,
            sinks=self.sinks,
            stop_marker=self._state.stop_marker,
            breaches=self._state.breaches,
            redrive=self.settings.redrive.topic,
            mailbox=self._mailbox,
            streams=self._accounts.streams,
            check=self._check,
        )

    def _committed(self, query_id: str, batch_id: int) -> None:
        try:
            self._settler.breaches.committed(query_id)
            settle_standing(self._settler, query_id, batch_id)
        except Exception as error:
            # As where a listener raises: the files stand until the next look.
            problem = f"not settled: {type(error).__name__}: {error}"
            log(BATCH_FINISHED, level=logging.WARNING, batch_id=batch_id, problem=problem)

    def _started(self, query: StreamingQuery) -> None:
        # A flow that is only used in a batch function sees a copy of the query's session.
        session = session_of(query)
        if session is not None:
            self._listen(session)
        find_lost(query, self._accounts, Ledger(self._state))

    def _policy(self, stage: Stage[Any, Any], flow: str | None) -> Policy:
        own = f"{flow}.{stage.name}"
        name = own if own in self.settings.stages else stage.name
        isolates = stage.kind == "foreach_batch"
        return resolve.policy(self.settings, name, stage.category, self.members, isolates=isolates)

    def _mailbox(self, session: SparkSession) -> Mailbox | None:
        """The way back for the workers' counts: one for each Spark application."""
        if is_connect(session):
            return self._accounts.files()
        context = session.sparkContext
        key = str(context.applicationId)
        if key not in self._mailboxes:
            self._mailboxes[key] = AccumulatorMailbox(context)
            self._accounts.listen(self._mailboxes[key])
        return self._mailboxes[key]

    def _listen(self, session: SparkSession) -> None:
        """Hear of every batch; each session tells of its own queries only."""
        key = session_key(session)
        if key is not None and key not in self._listening:
            self._listening.add(key)
            listen(session, self._settler)

    def _check(self, frame: DataFrame, names: Sequence[str]) -> None:
        if is_connect(frame.sparkSession):
            refuse_memory(self.sinks, names)
        self._reach.check_sinks(frame, names)
        if frame.isStreaming:
            self._listen(frame.sparkSession)
        self._reach.check_sources(frame)

    def _needed(self, policy: Policy) -> list[str]:
        """The sinks that rows of a batch function may go to."""
        leaves = policy.isolate or policy.whole_batch == "dead_letter"
        return sorted(policy.sinks()) if leaves else []

    def _warn_of_unused(self) -> None:
        used = {stage for stages in self._flows.values() for stage in stages}
        used |= {f"{flow}.{stage}" for flow, stages in self._flows.items() for stage in stages}
        for name in set(self.settings.stages) - used - self._batch_stages:
            log(STAGE_UNUSED, level=logging.WARNING, stage=name, known=sorted(used))
