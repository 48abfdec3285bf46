"""Bad input and bad use, through real Spark: a clear error or a letter, nothing lost, no hang."""

from __future__ import annotations

import functools
import logging
import sys
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from pyspark.errors import PySparkException, StreamingQueryException
from pyspark.sql import DataFrame, SparkSession

import sparkguard as sg
from tests.spark.made import (
    ROW,
    Order,
    Priced,
    build,
    committed,
    decode,
    failed,
    frame,
    guard,
    kafka_rows,
    letters,
    orders,
    price,
    stream,
    write,
)

# --- settings -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("stages:\n  decode:\n    handlr: fail\n", ":3:5: stages.decode.handlr: Unknown key"),
        ("stages:\n  decode:\n    handlr: fail\n", "Did you mean 'handler'?"),
        ("app: 5\n", ":1:6: app: Must be text."),
        ("defaults:\n  task_timeout: 30\n", ":2:17: defaults.task_timeout: A duration needs a"),
        ("app: ${NO_SUCH_VARIABLE}\n", ":1:6: app: "),
        ("app: ${NO_SUCH_VARIABLE}\n", "NO_SUCH_VARIABLE"),
        ("app: a\napp: b\n", ":2:1: app: "),
        ("app: a\napp: b\n", "Duplicate key 'app'"),
        ("sinks:\n  default: {type: fiel, path: x}\n", "Did you mean 'file'?"),
        ("app: [\n", ":2:1: "),
    ],
)
def test_a_wrong_file(tmp_path: Path, text: str, said: str) -> None:
    """Each mistake in a file is a sentence with file, line, column and key path."""
    file = tmp_path / "guard.yaml"
    file.write_text(text)

    with pytest.raises(sg.ConfigError) as got:
        sg.Guard.from_yaml(file)

    assert said in str(got.value)
    assert "Traceback" not in str(got.value)


@pytest.mark.parametrize(
    ("stage", "said"),
    [
        ("handler: log_and_go_on", "Unknown handler 'log_and_go_on'."),
        ("handler: deadletter", "Did you mean 'dead_letter'?"),
        ("sink: topic", "Unknown sink 'topic'."),
        ("by_exception: {orders.NoSuch: fail}", "orders.NoSuch"),
    ],
)
def test_an_unknown_name(tmp_path: Path, stage: str, said: str) -> None:
    """A handler, sink or exception that nobody knows is an error when the flow is built."""
    file = tmp_path / "guard.yaml"
    file.write_text(f"stages:\n  decode: {{{stage}}}\n")
    loaded = sg.Guard.from_yaml(file)

    with pytest.raises(sg.ConfigError, match=r"stages\.decode") as got:
        loaded.flow(decode, name="orders")

    assert said in str(got.value)


def test_a_stage_that_no_flow_has(
    spark: SparkSession, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """A stage in the settings that no flow uses is a warning at run, with the known ones."""
    made = guard(tmp_path, stages={"decod": {"handler": "fail"}, "decode": {}, "orders.price": {}})
    guarded = stream(spark, tmp_path, orders(4)).transform(made.flow(decode, price, name="orders"))

    with caplog.at_level(logging.WARNING, "sparkguard"):
        made.run(build(guarded, tmp_path, made.foreach_batch(write(tmp_path))))

    (warned,) = [r.getMessage() for r in caplog.records if "stage_unused" in r.getMessage()]
    assert "'decod'" in warned
    assert "'decode'" in warned


def test_settings_of_one_flow(spark: SparkSession, tmp_path: Path) -> None:
    """Two flows with a stage of one name: `decode:` is both flows', `returns.decode:` is one's."""
    made = guard(
        tmp_path,
        stages={
            "decode": {"handler": "log_and_continue"},
            "returns.decode": {"handler": "dead_letter"},
        },
    )
    values = frame(spark, orders(10, bad=[3]))

    for name in ("orders", "returns"):
        assert values.transform(made.flow(decode, price, name=name)).count() == 9

    totals = made.ledger.totals()
    assert totals["orders"].stages["decode"]["skipped"] == 1
    assert totals["returns"].stages["decode"]["dead_lettered"] == 1
    (letter,) = letters(tmp_path)
    assert (letter.failure.flow, letter.failure.stage) == ("returns", "decode")


# --- what a flow is built of ----------------------------------------------------------------------


def test_no_return_annotation(tmp_path: Path) -> None:
    """A stage that does not say what it gives is refused when the flow is built."""

    @sg.map
    def bare(order: Order):  # type: ignore[no-untyped-def]  # noqa: ANN202
        return order

    with pytest.raises(sg.StageError, match=r"'bare'.*no return annotation.*returns="):
        guard(tmp_path).flow(decode, bare, name="orders")


def test_stages_that_do_not_fit(tmp_path: Path) -> None:
    """A stage whose input is not what the stage before gives is refused, and both are named."""

    @sg.map
    def tax(priced: Priced) -> Priced:
        return priced

    with pytest.raises(sg.StageError, match=r"'tax': takes Priced, but 'decode'.*gives Order"):
        guard(tmp_path).flow(decode, tax, name="orders")


def test_an_output_that_spark_has_not(tmp_path: Path) -> None:
    """An output type that Spark has not is refused by name, and the remedy is said."""

    @sg.map
    def odd(order: Order) -> complex:
        return complex(order.id)

    with pytest.raises(sg.StageError, match=r"'odd'.*complex.*returns="):
        guard(tmp_path).flow(decode, odd, name="orders")


def test_a_format_without_a_type_at_the_end(tmp_path: Path) -> None:
    """JSON of no declared type is for the next stage; at the end the remedy is said."""
    with pytest.raises(sg.StageError, match=r"'plain': it gives plain Python objects.*Json\(Order"):
        guard(tmp_path).flow(sg.deserialize(sg.Json(), name="plain"), name="orders")


def test_no_value_column(spark: SparkSession, tmp_path: Path) -> None:
    """A frame without `value`, or one of another type, is refused before anything is read."""
    flow = guard(tmp_path).flow(decode, name="orders")

    with pytest.raises(sg.StageError, match=r"column 'value'.*it has: id.*Rename"):
        spark.range(3).transform(flow)
    with pytest.raises(sg.StageError, match=r"'value' is bigint"):
        spark.range(3).withColumnRenamed("id", "value").transform(flow)


def test_one_value_of_several_columns(spark: SparkSession, tmp_path: Path) -> None:
    """A first stage that takes one value is refused a frame of two columns, when it is built."""

    @sg.map
    def double(number: int) -> int:
        return number * 2

    flow = guard(tmp_path).flow(double, name="doubles")

    assert [row[0] for row in spark.range(2).transform(flow).collect()] == [0, 2]
    with pytest.raises(sg.StageError, match=r"'double': takes int, so one column.*are 2 in front"):
        spark.range(2).selectExpr("id", "1 more").transform(flow)


def test_columns_that_no_flow_can_read(spark: SparkSession, tmp_path: Path) -> None:
    """Two columns of one name, and a type that Spark cannot hand to Python, are refused by name."""
    flow = guard(tmp_path).flow(text, wild, name="wild")

    with pytest.raises(sg.StageError, match=r"several columns named 'more'"):
        spark.sql("select '' value, 1 more, 2 more").transform(flow)
    with pytest.raises(sg.StageError, match=r"'since' of type interval month.*cast it to string"):
        spark.sql("select '' value, interval '1' month since").transform(flow)


def test_a_wrong_carry(spark: SparkSession, tmp_path: Path) -> None:
    """What is to be carried and is not there, or is there twice, is refused by name."""
    made = guard(tmp_path)
    values = frame(spark, ["{}"]).selectExpr("value", "1 id")

    with pytest.raises(sg.StageError, match=r"carry 'nope'.*it has: value, id"):
        values.transform(made.flow(decode, name="a", carry=["nope"]))
    with pytest.raises(sg.StageError, match=r"gives 'id' and is to carry it too"):
        values.transform(made.flow(decode, name="b", carry=["id"]))


def test_headers_were_not_read(
    spark: SparkSession, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """A Kafka frame without headers gets one warning, which names the option."""
    flow = guard(tmp_path).flow(decode, name="orders")
    rows = spark.createDataFrame(kafka_rows(orders(2)), ROW)

    with caplog.at_level(logging.WARNING, "sparkguard"):
        rows.transform(flow).count()
        rows.drop("headers").transform(flow).count()

    (warned,) = [r.getMessage() for r in caplog.records if "headers_missing" in r.getMessage()]
    assert "includeHeaders" in warned
    assert "orders" in warned


# --- functions that misbehave ---------------------------------------------------------------------


class UnprintableError(Exception):
    def __str__(self) -> str:
        raise RuntimeError("no text")


class UnpicklableError(Exception):
    def __init__(self, needed: int, *, also: int) -> None:
        super().__init__(f"held {needed} and {also}")
        self.hold = (n for n in range(needed))


class OwnBaseError(BaseException):
    """Not even an Exception."""


class OutOfOrderError(Exception):
    def __reduce__(self) -> tuple[Any, ...]:
        raise TypeError("not to be pickled")


def endless(depth: int) -> int:
    """A recursion without an end."""
    return endless(depth + 1)


RAISED: dict[str, Callable[[], BaseException]] = {
    "exit": lambda: SystemExit(3),
    "interrupt": KeyboardInterrupt,
    "generator": GeneratorExit,
    "own": lambda: OwnBaseError("not an Exception"),
    "stop": StopIteration,
    "unprintable": UnprintableError,
    "unpicklable": lambda: UnpicklableError(3, also=4),
    "reduce": lambda: OutOfOrderError("text"),
}
GIVEN: dict[str, Any] = {"none": None, "type": 17}


def misbehave(kind: str) -> Any:
    """Raise, or give what is no text."""
    make = RAISED.get(kind)
    if make is not None:
        raise make()
    return endless(0) if kind == "recursion" else GIVEN.get(kind, kind)


@sg.map
def wild(value: str) -> str:
    """Does whatever its record says."""
    return misbehave(value)  # type: ignore[no-any-return]


@sg.map
def shout(value: str) -> str:
    """Stumbles over what is no text."""
    return value.upper()


text = sg.deserialize(sg.Text(), name="text")

CAUSES = {
    "exit": ("fatal", "SystemExit"),
    "generator": ("fatal", "GeneratorExit"),
    "interrupt": ("fatal", "KeyboardInterrupt"),
    "own": ("fatal", "tests.spark.test_bad_use.OwnBaseError"),
    "recursion": ("poison", "RecursionError"),
    "reduce": ("poison", "tests.spark.test_bad_use.OutOfOrderError"),
    "stop": ("poison", "StopIteration"),
    "unpicklable": ("poison", "tests.spark.test_bad_use.UnpicklableError"),
    "unprintable": ("poison", "tests.spark.test_bad_use.UnprintableError"),
}


def test_whatever_a_stage_raises(spark: SparkSession, tmp_path: Path) -> None:
    """P6, P11, P17: each is one letter with its cause, and the records around it go on."""
    made = guard(tmp_path, stages={"wild": {"on_fatal": "dead_letter"}})
    values = [one for kind in CAUSES for one in ("good", kind, "well")]

    out = frame(spark, values).transform(made.flow(text, wild, name="wild")).collect()

    assert Counter(row.value for row in out) == {"good": len(CAUSES), "well": len(CAUSES)}
    found = {(it.record.value or b"").decode(): it.failure for it in letters(tmp_path)}
    assert {kind: (it.cause.value, it.exception_type) for kind, it in found.items()} == CAUSES
    assert {it.stage for it in found.values()} == {"wild"}
    assert found["unprintable"].message == "(no message: str() raised RuntimeError)"
    total = made.ledger.total("wild")
    assert total.balanced
    assert total.records_in == len(values)


@pytest.mark.parametrize("kind", ["exit", "interrupt", "generator", "own"])
def test_what_is_no_exception_ends_the_job(spark: SparkSession, tmp_path: Path, kind: str) -> None:
    """P11: by default it is fatal and fails the job, with a sentence; nothing hangs."""
    made = guard(tmp_path)

    error = failed(frame(spark, ["a", kind]).transform(made.flow(text, wild, name="wild")))

    assert error.facts["cause"] == "fatal"
    assert error.sentence.startswith("Stage 'wild' of flow 'wild' failed")
    assert CAUSES[kind][1] in error.sentence


@pytest.mark.parametrize(
    ("stages", "said"),
    [((text, wild, shout), "The stage 'wild' returned None."), ((text, wild), "got None")],
    ids=["middle", "last"],
)
def test_none_from_a_map(
    spark: SparkSession, tmp_path: Path, stages: tuple[Any, ...], said: str
) -> None:
    """P6: None where the annotation promises text is a letter of the stage that gave it."""
    made = guard(tmp_path)

    out = frame(spark, ["a", "none", "b"]).transform(made.flow(*stages, name="wild")).collect()

    assert [row.value.lower() for row in out] == ["a", "b"]
    (letter,) = letters(tmp_path)
    assert (letter.failure.stage, letter.record.value) == ("wild", b"none")
    assert said in letter.failure.message
    assert made.ledger.total("wild").balanced


def test_a_wrong_type_for_one_record(spark: SparkSession, tmp_path: Path) -> None:
    """P6: a value that is not of the declared type is a letter that names type and value."""
    made = guard(tmp_path)

    out = frame(spark, ["a", "type", "b"]).transform(made.flow(text, wild, name="wild")).collect()

    assert [row.value for row in out] == ["a", "b"]
    (letter,) = letters(tmp_path)
    assert (letter.failure.stage, letter.record.value) == ("wild", b"type")
    assert letter.failure.message == "The value is declared str and got int 17."


def test_ten_megabytes(spark: SparkSession, tmp_path: Path) -> None:
    """P17: a record of 10 MB that fails is a letter, byte for byte; its message is bounded."""
    made = guard(tmp_path)
    big = b'{"id": "' + b"x" * 10_000_000 + b'"}'

    @sg.deserialize
    def read(value: bytes) -> str:
        if len(value) > 100:
            raise ValueError(value.decode())
        return value.decode()

    out = frame(spark, [b"small", big, b"too"]).transform(made.flow(read, name="big")).collect()

    assert [row.value for row in out] == ["small", "too"]
    (letter,) = letters(tmp_path)
    assert letter.record.value == big
    assert len(letter.failure.message) <= 8192
    assert len(letter.failure.trace) <= 8192


def test_a_module_that_only_the_driver_has(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A handler whose module a worker cannot import is a sentence that says what to install."""
    (tmp_path / "only_here.py").write_text(
        "import sparkguard as sg\n\n"
        "class Handler:\n"
        "    def decide(self, failure):\n"
        "        return sg.Continue()\n"
    )
    monkeypatch.syspath_prepend(str(tmp_path))
    handler = __import__("only_here").Handler()
    made = guard(tmp_path, stages={"decode": {"handler": handler}})
    guarded = frame(spark, orders(2, bad=[1])).transform(made.flow(decode, name="orders"))

    with pytest.raises(PySparkException) as got:
        guarded.collect()
    sys.modules.pop("only_here")

    said = str(got.value)
    assert "The module 'only_here' cannot be imported on this worker" in said
    assert "install the module or the plugin on every worker" in said


def test_a_state_that_cannot_be_written(spark: SparkSession, tmp_path: Path) -> None:
    """A batch job whose account cannot be kept is a sentence where the account is asked for."""
    (tmp_path / "file").write_text("")
    made = guard(tmp_path, state={"path": str(tmp_path / "file")})
    assert frame(spark, ["a"]).transform(made.flow(text, wild, name="wild")).count() == 1

    with pytest.raises(sg.ConfigError, match=r"The state at .*file' cannot be written"):
        _ = made.ledger


# --- foreach_batch --------------------------------------------------------------------------------


async def coroutine(batch: DataFrame, batch_id: int) -> None:
    """Spark would make it and throw it away."""


def generator(batch: DataFrame, batch_id: int) -> Iterator[None]:
    """Spark would make it and throw it away."""
    yield None


class Store:
    def __call__(self, batch: DataFrame, batch_id: int) -> None:
        """Do nothing."""


def test_a_callable_object(tmp_path: Path) -> None:
    """A callable object goes by the name of its class, bare or in a partial."""
    assert sg.foreach_batch(Store()).name == "Store"
    assert sg.foreach_batch(functools.partial(Store())).name == "Store"


@pytest.mark.parametrize("function", [coroutine, generator])
def test_a_batch_function_that_never_runs(tmp_path: Path, function: Callable[..., Any]) -> None:
    """P15: Spark would commit every batch without running it, so it is refused."""
    with pytest.raises(sg.StageError, match="commit every batch without running it"):
        sg.foreach_batch(function)
    with pytest.raises(sg.StageError, match="commit every batch without running it"):
        guard(tmp_path).foreach_batch(function)


@pytest.mark.parametrize(
    "kind", ["exit", "interrupt", "generator", "own", "stop", "recursion", "unprintable", "reduce"]
)
def test_whatever_a_batch_function_raises(spark: SparkSession, tmp_path: Path, kind: str) -> None:
    """P11: the query ends with the stage's failure, its batch is not committed; no hang."""
    made = guard(tmp_path)
    guarded = stream(spark, tmp_path, orders(4)).transform(made.flow(decode, name="orders"))

    @sg.foreach_batch
    def store(batch: DataFrame, batch_id: int) -> None:
        misbehave(kind)

    with pytest.raises(sg.StageFailedError) as got:
        made.run(build(guarded, tmp_path, made.foreach_batch(store)))

    assert got.value.sentence.startswith("Stage 'store' failed (production, ")
    assert got.value.facts["exception_type"] == CAUSES[kind][1]
    assert got.value.facts["cause"] == CAUSES[kind][0]
    assert committed(tmp_path) == []


def test_without_a_supervisor(spark: SparkSession, tmp_path: Path) -> None:
    """P11: a query that nobody supervises ends too, and Spark's error holds the sentence."""
    made = guard(tmp_path)
    guarded = stream(spark, tmp_path, orders(4)).transform(made.flow(decode, name="orders"))

    def store(batch: DataFrame, batch_id: int) -> None:
        raise SystemExit(1)

    query = build(guarded, tmp_path, made.foreach_batch(store))()

    with pytest.raises(StreamingQueryException, match="Stage 'store' failed"):
        query.awaitTermination(60)
