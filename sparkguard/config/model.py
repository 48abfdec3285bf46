"""The settings: what a user may write, and what holds when nothing is written.

The same model checks a YAML file and a `Settings(...)` in code. A setting that
is not written is taken from ``defaults:``, then from the built-in defaults.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Annotated, Any, Literal

from pydantic import (
    AfterValidator,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    PrivateAttr,
    StrictBool,
    StrictFloat,
    StrictInt,
    StrictStr,
    ValidationError,
    field_validator,
    model_validator,
)

from sparkguard.config.duration import Duration, seconds
from sparkguard.config.explain import explained
from sparkguard.config.place import Places
from sparkguard.core.failure import Cause
from sparkguard.core.policy import OnNull, WholeBatch, Writes

if TYPE_CHECKING:
    from pydantic._internal._model_construction import ModelMetaclass
else:
    ModelMetaclass = type(BaseModel)


class _OwnErrors(ModelMetaclass):
    """Turns pydantic's errors into ours where a model is made in code, nested ones too."""

    def __call__(cls, *args: Any, **kwargs: Any) -> Any:  # noqa: N805  # of a metaclass
        try:
            return super().__call__(*args, **kwargs)
        except ValidationError as error:
            raise explained(error, cls, Places()) from None


class Model(BaseModel, metaclass=_OwnErrors):
    """What all settings have in common: frozen, no unknown keys, no input in messages."""

    model_config = ConfigDict(
        frozen=True,
        extra="forbid",
        hide_input_in_errors=True,
        use_attribute_docstrings=True,
    )

    @model_validator(mode="before")
    @classmethod
    def _empty_is_unsaid(cls, data: Any) -> Any:
        """A key without a value (its lines are commented out) is a key that is not there."""
        if data is None:
            return {}
        if isinstance(data, Mapping):
            return {key: value for key, value in data.items() if value is not None}
        return data


class Member(Model):
    """A member of a family: its name, and its options beside it."""

    model_config = ConfigDict(extra="allow")

    type: StrictStr
    """Name of the member, as `sparkguard plugins` lists it."""
    _value: Any = PrivateAttr(default=None)

    def __repr_args__(self) -> Iterable[tuple[str | None, Any]]:
        """Names of the options only: one of them may hold a secret."""
        yield "type", self.type
        yield from ((name, "…") for name in self.options)

    @property
    def options(self) -> Mapping[str, Any]:
        """What is written beside the type."""
        return self.__pydantic_extra__ or {}

    @property
    def value(self) -> Any:
        """The member itself, if code gave it instead of a name."""
        return self._value


class HandlerSettings(Member):
    """Who decides: a name, or a mapping with ``type`` and the handler's options."""


class SinkSettings(Member):
    """Where letters rest: a mapping with ``type`` and the sink's options."""


def _handler(value: Any) -> Any:
    return _named(HandlerSettings, "decide", value)


def _later(value: Any) -> Any:
    if not isinstance(value, Mapping) or "type" in value:
        raise ValueError("Must be a mapping, as {delays: [1m, 10m, 1h], then: dead_letter}.")
    return {"type": "retry_later", **value}


def _sink(value: Any) -> Any:
    return _named(SinkSettings, "open", value)


def _named(model: type[Member], method: str, value: Any) -> Any:
    if isinstance(value, str):
        return {"type": value}
    if not isinstance(value, Mapping | Member) and callable(getattr(value, method, None)):
        made = model(type=type(value).__name__)
        made._value = value  # noqa: SLF001  # the model's own private attribute
        return made
    if not isinstance(value, Mapping | Member):
        problem = "Must be a name, or a mapping with 'type' and its options."
        raise ValueError(problem)  # noqa: TRY004  # pydantic reports a ValueError, not a TypeError
    return value


HandlerName = Annotated[HandlerSettings, BeforeValidator(_handler)]
LaterSettings = Annotated[HandlerSettings, BeforeValidator(_later)]
SinkName = Annotated[SinkSettings, BeforeValidator(_sink)]


def _pattern(text: str) -> str:
    try:
        re.compile(text)
    except re.error as error:
        raise ValueError(f"This is no regular expression: {error}.") from error
    return text


def _app(name: str) -> str:
    if not re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9._-]*", name):
        raise ValueError(
            "Must be of letters, digits, '.', '_' and '-', and begin with one of the first two."
        )
    return name


Pattern = Annotated[StrictStr, AfterValidator(_pattern)]


class StateSettings(Model):
    """The state: a directory of the app."""

    path: StrictStr | None = None
    """Directory for ledger, restart limit and stop marker, or a URI. Unsaid: `state/<app>`."""


class BackoffSettings(Model):
    """How long to wait between two tries; each wait is drawn at random up to its bound."""

    initial: Duration = "100ms"
    """Bound of the first wait."""
    multiplier: Annotated[StrictFloat, Field(ge=1, le=100)] = 2.0
    """By what the bound grows with each wait."""
    max: Duration = "10s"
    """The highest bound."""

    @model_validator(mode="after")
    def _ordered(self) -> BackoffSettings:
        if seconds(self.initial) > seconds(self.max):
            raise ValueError("The first wait ('initial') is longer than the longest ('max').")
        return self


class RestartBackoffSettings(BackoffSettings):
    """How long the supervisor waits before it starts a query again."""

    initial: Duration = "1s"
    """Bound of the first wait."""
    max: Duration = "1m"
    """The highest bound."""


class RetrySettings(Model):
    """When to try again: transient causes only, within the task timeout."""

    max_attempts: Annotated[StrictInt, Field(ge=1)] | None = None
    """Tries in all, the first included. Unsaid: the task timeout is the limit."""
    backoff: BackoffSettings = BackoffSettings()
    """How long to wait between two tries."""


class BudgetSettings(Model):
    """How much a stage may fail before it stops; it never starts dropping."""

    max_ratio: Annotated[StrictFloat, Field(ge=0, le=1)] = 0.10
    """Failed by entered records, over the window: 0.05 is 5 %; 1 sets no limit."""
    window: Annotated[StrictInt, Field(ge=1)] = 1000
    """The fewest records that a ratio is judged on; the window spans batches."""
    then: Literal["fail", "restart"] = "fail"
    """What happens when the budget is exceeded."""


class IsolateSettings(Model):
    """How the bad rows of a batch are looked for; `true` and `false` alone are its `rows`."""

    rows: StrictBool = False
    """foreach_batch: find the rows that make a batch fail, and go on with the others."""
    max_calls: Annotated[StrictInt, Field(ge=1)] | None = None
    """Calls for one batch; when they do not find its bad rows, the stage fails. Unsaid: 5000, and
    1000 for foreach_batch, whose calls are writes."""


def _isolate(value: Any) -> Any:
    if isinstance(value, bool):
        return {"rows": value}
    if not isinstance(value, Mapping | IsolateSettings):
        raise ValueError("Must be true or false, or a mapping with 'max_calls'.")  # noqa: TRY004
    return value


def _or_bool(schema: dict[str, Any]) -> None:
    reference = schema.pop("$ref", None)
    if reference is not None:
        schema["anyOf"] = [{"type": "boolean"}, {"$ref": reference}]


class StageSettings(Model):
    """What happens when one stage fails."""

    handler: HandlerName | None = None
    """Who decides about poison. Unsaid: `dead_letter`, and `fail` for production that does not
    isolate."""
    on_transient: HandlerName | None = None
    """Who decides when the retries of a transient cause are used up. Unsaid: `restart`."""
    on_programming: HandlerName | None = None
    """Who decides when the code is wrong. Unsaid: `fail`."""
    on_fatal: HandlerName | None = None
    """Who decides when the process is in trouble. Unsaid: `fail`."""
    on_crash: HandlerName | None = None
    """Who decides about a record that ends its worker's process. Unsaid: `fail`."""
    retry_later: LaterSettings | None = None
    """The options of the handler `retry_later`, which then decides about poison and about
    transient causes whose retries are used up, where the stage names no handler of its own."""
    by_exception: dict[StrictStr, HandlerName] = Field(default_factory=dict)
    """Handlers for poison by exception class; subclasses too, the most specific first."""
    classify: dict[Cause, tuple[StrictStr, ...]] = Field(default_factory=dict)
    """Exception classes by cause, asked before the built-in classifier."""
    sink: StrictStr | None = None
    """Name of the sink for this stage's letters. Unsaid: `default`."""
    retry: RetrySettings = RetrySettings()
    """When to try again."""
    task_timeout: Duration = "5m"
    """From the first failure on, without progress in between; bounds tries and waits together."""
    record_timeout: Duration | None = None
    """How long one record may take in a stage of a flow; of a map_batches, one call. Unsaid: any
    time."""
    budget: BudgetSettings = BudgetSettings()
    """How much may fail before the stage stops."""
    on_null: OnNull = "pass"
    """What becomes of an empty value: `pass` it on as None, `skip` it, or `fail`."""
    isolate: Annotated[
        IsolateSettings, BeforeValidator(_isolate), Field(json_schema_extra=_or_bool)
    ] = IsolateSettings()
    """How the bad rows of a batch are looked for."""
    producer: dict[StrictStr, Any] = Field(default_factory=dict, repr=False)
    """produce: settings of librdkafka, which go over those that the stage gives."""
    writes: Writes | None = None
    """foreach_batch: what the function does when it sees a row again; `isolate` needs `upsert` or
    `atomic`."""
    whole_batch: WholeBatch | None = None
    """foreach_batch: allow a failing batch to be lost (`skip`) or dead-lettered as a whole."""

    @field_validator("classify", mode="after")
    @classmethod
    def _one_cause_each(cls, value: dict[Cause, tuple[str, ...]]) -> dict[Cause, tuple[str, ...]]:
        names = [name for listed in value.values() for name in listed]
        twice = sorted({name for name in names if names.count(name) > 1})
        if twice:
            raise ValueError(f"The exception {twice[0]!r} stands under classify twice.")
        return value


class RestartSettings(Model):
    """The supervisor's limit, and its back-off."""

    max_restarts: Annotated[StrictInt, Field(ge=0)] = 5
    """Restarts since the last committed batch; 0 restarts never."""
    max_per_hour: Annotated[StrictInt, Field(ge=0)] = 20
    """Restarts within any hour, whatever was committed in between."""
    backoff: RestartBackoffSettings = RestartBackoffSettings()
    """How long to wait before a start."""


class RedriveSettings(Model):
    """Where letters go to be processed again."""

    bootstrap_servers: StrictStr | None = None
    """`host:port` of the brokers, several by comma."""
    topic: StrictStr | None = None
    """The topic that the query subscribes to beside its inputs; of this app alone."""
    config: dict[StrictStr, Any] = Field(default_factory=dict, repr=False)
    """Further settings of librdkafka, security among them."""
    max_replays: Annotated[StrictInt, Field(ge=1)] = 3
    """How often one record is sent back, so that no loop is endless."""
    parking_lot: StrictStr | None = None
    """Name of the sink for letters that were sent back so often. Unsaid: they stay where they
    are."""


class Settings(Model):
    """Everything a guard can be told; without arguments the built-in defaults."""

    app: Annotated[StrictStr, AfterValidator(_app)] = "app"
    """Name of the application, in letters, state and metrics."""
    state: StateSettings = StateSettings()
    """Where the app keeps its state."""
    sinks: dict[StrictStr, SinkName] = Field(default_factory=dict)
    """Where letters rest, by name. Unsaid: `default`, files in `./dead-letters`."""
    defaults: StageSettings = StageSettings()
    """What holds for every stage that does not say otherwise."""
    stages: dict[StrictStr, StageSettings] = Field(default_factory=dict)
    """What holds for one stage, by its name."""
    restart: RestartSettings = RestartSettings()
    """How often the supervisor starts a query again."""
    redrive: RedriveSettings = RedriveSettings()
    """Where letters are sent back to, and how often."""
    redact: tuple[Pattern, ...] = ()
    """Regular expressions; what matches is masked in messages and traces."""
    _places: Places = PrivateAttr(default_factory=Places)

    @property
    def places(self) -> Places:
        """Where each setting stands in its file, for messages."""
        return self._places
