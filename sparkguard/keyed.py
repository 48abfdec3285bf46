"""A stateful stage, bound: a function from DataFrame to DataFrame, as a `Flow` is.

Three parts in one plan: rows are packed, by an Arrow pass; Spark brings those of one key together
and calls the `Processor` with them; what it emits becomes columns, by an Arrow pass behind it.
"""

from __future__ import annotations

import functools
import json
import uuid
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import quote

import msgspec

from sparkguard import pickling
from sparkguard.config.model import Settings
from sparkguard.core.evolution import misfit, outline, refixed
from sparkguard.core.keyed import Keyed
from sparkguard.core.policy import Handler, Policy
from sparkguard.core.shape import Shape
from sparkguard.driver.connect import is_connect
from sparkguard.driver.state import State
from sparkguard.errors import ConfigError, StageError, UnsupportedError
from sparkguard.executor.keyed_plan import EMITTED, KEY, PACKED, KeyedPlan, pack, unpack
from sparkguard.executor.plan import ORIGIN_COLUMN, Layout, Plan, Step
from sparkguard.executor.rows import DictReader, RowReader, row_reader
from sparkguard.flow import Bound, packed, sinks_of
from sparkguard.frame import is_kafka, quoted
from sparkguard.handlers.dead_letter import DeadLetterHandler
from sparkguard.handlers.log_and_continue import LogAndContinueHandler
from sparkguard.handlers.retry_later import RetryLaterHandler
from sparkguard.stages.base import Stage
from sparkguard.stages.types import shape_of, spark_type

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

_PROVIDER: Final = "spark.sql.streaming.stateStore.providerClass"
_ROCKS: Final = "org.apache.spark.sql.execution.streaming.state.RocksDBStateStoreProvider"

_WHOLE: Final = {"tinyint", "smallint", "int", "bigint"}
_NAMES: Final = {"string", "binary", *_WHOLE}

_DEFAULTS: Final[dict[str, Handler]] = {
    "DuplicateError": LogAndContinueHandler(),
    "StaleError": LogAndContinueHandler(),
    "GapError": DeadLetterHandler(),
    "ConflictError": DeadLetterHandler(),
}
"""Who decides about events that may not change a state, where the settings do not say it."""


def check_settings(stage: str, settings: Settings, policy: Policy) -> None:
    """Refuse what would not be kept.

    Raises:
        ConfigError: the stage's records are to be timed, or put off.
    """
    own = settings.stages.get(stage)
    if own is not None and own.record_timeout is not None:
        raise ConfigError(
            f"Stage {stage!r}: 'record_timeout' bounds the functions of a flow's stages, and a "
            "stateful stage is none: put what may hang into a flow in front of it."
        )
    if any(isinstance(handler, RetryLaterHandler) for handler in policy.handlers()):
        raise ConfigError(
            f"Stage {stage!r}: 'retry_later' sends a record of Kafka through its flow again, and a "
            "stateful stage has only events, whose order it would give up."
        )


def with_versions(policy: Policy) -> Policy:
    """The policy of a stateful stage: what the settings leave open about versions is filled in."""
    said = {name.rpartition("sparkguard.errors.")[2] for name, _ in policy.by_exception}
    if "VersionError" in said:
        return policy
    more = tuple(
        (f"sparkguard.errors.{name}", handler)
        for name, handler in _DEFAULTS.items()
        if name not in said
    )
    return replace(policy, by_exception=(*policy.by_exception, *more))


@dataclass(frozen=True, slots=True, kw_only=True)
class Stateful:
    """A stateful stage as one function from DataFrame to DataFrame: ``df.transform(stateful)``.

    Attributes:
        shape: the type of what it emits; one column a field.
    """

    stage: Stage[Any, Any]
    shape: Shape = field(repr=False)
    policy: Policy = field(repr=False)
    bound: Bound = field(repr=False)
    state: State = field(repr=False)

    @property
    def name(self) -> str:
        """The stage's name, which letters and ledger know as its flow's too."""
        return self.stage.name

    @property
    def keyed(self) -> Keyed:
        """What the stage says of its keys."""
        if self.stage.keyed is None:
            raise StageError("it is no stateful stage.", stage=self.name)
        return self.stage.keyed

    def __call__(self, frame: DataFrame) -> DataFrame:
        """What the stage emits for a stream's events; nothing is read until Spark evaluates it.

        Raises:
            StageError: the frame is no stream, or has not the columns.
            ConfigError: Spark keeps its state elsewhere than in RocksDB, a sink cannot take the
                letters, or stored states cannot be read as the state's type any more.
            UnsupportedError: on Spark Connect.
        """
        self._look(frame)
        self.bound.check(frame, sinks_of([self.policy], self.bound.sinks))
        kind = dict(frame.dtypes)[self.keyed.key]
        check_stored(self.state, self.name, self.keyed, kind)
        shown = [name for name in frame.columns if name != ORIGIN_COLUMN]
        hidden = [ORIGIN_COLUMN] if ORIGIN_COLUMN in frame.columns else []
        frame = frame.select(*map(quoted, [*shown, *hidden]))
        plan = self._plan(frame, shown)
        if frame.isStreaming:
            self.bound.streams(plan.plan.use)
        work = packed(plan.plan, plan)
        schema = frame.select(quoted(self.keyed.key).alias(KEY)).schema.add(PACKED, "binary")
        emitted = self._kept(frame.mapInArrow(functools.partial(pack, work), schema), work)
        shape = pickling.dumps(self.shape)
        return emitted.mapInArrow(functools.partial(unpack, shape), spark_type(self.shape))

    def _look(self, frame: DataFrame) -> None:
        """Refuse a frame that cannot be the stage's."""
        if is_connect(frame.sparkSession):
            raise UnsupportedError(
                f"Stage {self.name!r}: a stateful stage needs a classic session; Spark Connect "
                "gives its workers no way to send their counts back."
            )
        if not frame.isStreaming:
            raise StageError("a state needs a stream, and the frame is none.", stage=self.name)
        check_columns(self.name, self.keyed, frame.dtypes)
        check_event(self.name, self.stage.signature().input, frame.columns)
        provider = frame.sparkSession.conf.get(_PROVIDER, "") or ""
        if "RocksDB" not in provider:
            raise ConfigError(
                f"Stage {self.name!r}: Spark's stateful functions need RocksDB. Set it before the "
                f"query starts: spark.conf.set({_PROVIDER!r}, {_ROCKS!r})"
            )

    def _plan(self, frame: DataFrame, shown: list[str]) -> KeyedPlan:
        takes = self.stage.signature().input
        read, convert = row_reader(takes)
        if takes is Any:
            read = DictReader()
        elif not isinstance(read, DictReader | RowReader):
            msg = f"an event is a row: annotate it as a struct or a dict, not as {takes!r}."
            raise StageError(msg, stage=self.name)
        step = Step(
            name=self.name,
            kind=self.stage.kind,
            category=self.stage.category,
            policy=self.policy,
            function=self.stage,
        )
        plan = Plan(
            app=self.bound.app,
            flow=self.name,
            use=uuid.uuid4().hex,
            steps=(step,),
            layout=Layout(rows=len(shown)),
            shape=self.shape,
            sinks=self.bound.sinks,
            stop_marker=self.bound.stop_marker,
            zone=frame.sparkSession.conf.get("spark.sql.session.timeZone") or "UTC",
        )
        return KeyedPlan(
            plan=plan,
            keyed=self.keyed,
            read=read,
            convert=convert,
            columns=tuple(None if name is None else shown.index(name) for name in self.keyed.facts),
            kafka=is_kafka(frame),
        )

    def _kept(self, rows: DataFrame, work: bytes) -> DataFrame:
        """What Spark makes of the packed rows, with one owner a key."""
        from pyspark.sql.types import BinaryType, StructField, StructType

        from sparkguard.executor.keyed_processor import Processor

        mailbox = self.bound.mailbox(rows.sparkSession)
        ttl = None if self.keyed.ttl is None else int(self.keyed.ttl * 1000)
        slot, waits = None if mailbox is None else mailbox.slot, self.keyed.rules.first is not None
        processor = Processor(work, ttl, slot, waits=waits)
        return rows.groupBy(KEY).transformWithState(
            processor,
            StructType([StructField(EMITTED, BinaryType())]),
            "append",
            "ProcessingTime" if self.keyed.timed else "None",
        )


def emitted_shape(stage: Any) -> Shape:
    """The type of what a stateful stage emits.

    Raises:
        StageError: it is no stateful stage, does not say it, or Spark has no such type.
    """
    if getattr(stage, "keyed", None) is None:
        kind = getattr(stage, "kind", type(stage).__name__)
        raise StageError(f"guard.stateful takes a stage made by sg.stateful, not {kind}.")
    return shape_of(stage.signature().output, where=f"Stage {stage.name!r}")


def check_columns(stage: str, keyed: Keyed, columns: list[tuple[str, str]]) -> None:
    """Look whether a frame has the columns that a stage names, each once and of a fitting type.

    Raises:
        StageError: it has not; names the column.
    """
    types, names = dict(columns), [name for name, _ in columns]
    for name, allowed in _columns(keyed):
        words = "a whole number" if allowed is _WHOLE else "text, bytes or a whole number"
        if name not in types:
            have = ", ".join(types)
            msg = f"it takes the column {name!r}, which the frame has not; it has: {have}."
        elif names.count(name) > 1:
            msg = f"it takes the column {name!r}, and the frame has several of that name: drop one."
        elif types[name] not in allowed:
            msg = f"the column {name!r} is {types[name]} and must be {words}: cast it."
        else:
            continue
        raise StageError(msg, stage=stage)


def check_event(stage: str, event: Any, columns: list[str]) -> None:
    """Look whether a frame has what each event must have; of pydantic models only they know.

    Raises:
        StageError: it has not; names the first such field.
    """
    try:
        fields = getattr(msgspec.inspect.type_info(event), "fields", ())
    except TypeError:  # no type of msgspec's: the conversion says more
        return
    for one in fields:
        if one.required and not {one.name, one.encode_name} & set(columns):
            have = ", ".join(columns)
            msg = f"its event needs {one.encode_name!r}, which the frame has not; it has: {have}."
            raise StageError(msg, stage=stage)


def check_stored(state: State, stage: str, keyed: Keyed, key: str) -> None:
    """Compare a stage with what its checkpoint was made by, and remember it.

    Args:
        key: Spark's type of the key.

    Raises:
        ConfigError: states of an earlier type cannot be read, names the field; or Spark could
            not go on from the checkpoint.
        StageError: a state cannot be of this type.
    """
    name, kind = f"stateful/{quote(stage, safe='')}", keyed.state
    anew = f"start with a new checkpoint, and delete {name}.json in the state at {state.path!r}."
    try:
        now = outline(kind)
    except TypeError as error:
        raise StageError(f"its state cannot be of this type: {error}", stage=stage) from error
    known = state.load(name) or {}
    if isinstance(known, list):  # as it was before `fixed` was noted
        known = {"types": known}
    for before in known.get("types", ()):
        wrong = misfit(before, now)
        if wrong is not None:
            raise ConfigError(
                f"Stage {stage!r}: its stored states cannot be read as {_name(kind)}: {wrong}. "
                "Give a new field a default and leave the type of an old one as it is; or " + anew
            )
    forgets = keyed.ttl is not None
    waits = forgets and keyed.rules.first is not None
    fixed = {"key": key, "timed": keyed.timed, "ttl": forgets, "waits": waits}
    changed = refixed(known.get("fixed", fixed), fixed)
    if changed is not None:
        raise ConfigError(
            f"Stage {stage!r}: Spark could not go on from its checkpoint: {changed}. Leave that as "
            "it was; or " + anew
        )
    types = known.get("types", [])
    # As text: a default may be NaN, which equals nothing.
    if json.dumps(now) not in map(json.dumps, types):
        types = [*types, now]
    noted = {"types": types, "fixed": fixed}
    if noted != known:
        state.store(name, noted)


def _name(kind: Any) -> str:
    return getattr(kind, "__name__", None) or str(kind)


def _columns(keyed: Keyed) -> list[tuple[str, set[str]]]:
    """The columns that the frame must have, and of which types."""
    wanted = (
        (keyed.key, _NAMES),
        (keyed.sequence, _WHOLE),
        (keyed.event_id, _NAMES),
        (keyed.expected_version, _WHOLE),
    )
    return [(name, allowed) for name, allowed in wanted if name is not None]
