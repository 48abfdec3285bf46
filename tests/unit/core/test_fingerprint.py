"""An exception as text: bounded, redacted, grouped, and never an exception itself."""

import json
import linecache
import sys
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from sparkguard.core import fingerprint
from sparkguard.core.fingerprint import Described, canonical, describe, type_names
from tests.unit.core.named import named


def caught(function: Callable[..., Any], *args: Any) -> BaseException:
    """What the function raises, with its traceback."""
    try:
        function(*args)
    except BaseException as error:
        return error
    pytest.fail("nothing was raised")


def price(order: int) -> None:
    """A user's function."""
    if order < 0:
        raise ValueError(f"no price for {order}")
    raise ValueError(f"too dear: {order}")


def test_described() -> None:
    """All four facts of one failure."""
    found = describe(caught(price, -1))
    assert found.types == ("ValueError", "Exception", "BaseException")
    assert found.message == "no price for -1"
    assert found.trace.startswith("Traceback (most recent call last):\n  File ")
    assert 'raise ValueError(f"no price for {order}")' in found.trace
    assert found.trace.endswith("\nValueError: no price for -1\n")
    assert len(found.fingerprint) == 16


def test_repeated_failure_has_its_own_message() -> None:
    """What is remembered for a place in the code is not the message of its first failure."""
    first, second = describe(caught(price, -1)), describe(caught(price, -2))
    assert second.message == "no price for -2"
    assert second.trace.endswith("ValueError: no price for -2\n")
    assert "-1" not in second.trace.partition("Traceback")[2].rpartition("ValueError: ")[2]
    assert first.fingerprint == second.fingerprint


def test_fingerprint_tells_places_and_types_apart() -> None:
    """Letters group by type and place, not by message."""
    one, other = describe(caught(price, -1)), describe(caught(price, 1))
    assert one.fingerprint != other.fingerprint
    bare = {describe(cls("x")).fingerprint for cls in (ValueError, TypeError, KeyError)}
    assert len(bare) == 3
    assert describe(ValueError("x")).fingerprint == describe(ValueError("y")).fingerprint


def module(folder: Path, source: str) -> Callable[[int], None]:
    """`price` of a module with the source."""
    path = folder / "orders.py"
    path.write_text(source)
    linecache.checkcache(str(path))
    made = ModuleType("orders")
    exec(compile(source, str(path), "exec"), made.__dict__)
    return made.price  # type: ignore[no-any-return]


PRICE = "def price(order):\n    check = order\n    raise ValueError(check)\n"


def test_fingerprint_survives_edits_and_moves(tmp_path: Path) -> None:
    """Lines above the function, the folder and missing source change nothing; the line does."""
    here, there = tmp_path / "a", tmp_path / "b"
    here.mkdir()
    there.mkdir()
    before = describe(caught(module(here, PRICE), 1)).fingerprint
    moved = describe(caught(module(there, PRICE), 1)).fingerprint
    edited = describe(caught(module(here, "import json\n\n\n" + PRICE), 1)).fingerprint
    unreadable = module(there, PRICE)
    (there / "orders.py").unlink()
    linecache.clearcache()
    without_source = describe(caught(unreadable, 1))
    changed = describe(caught(module(here, PRICE.replace("    raise", "\n    raise")), 1))
    assert before == moved == edited == without_source.fingerprint
    assert before != changed.fingerprint
    assert "in price\nValueError: 1" in without_source.trace


def test_library_frames_do_not_count() -> None:
    """The standard library's frames are shown, but another Python must not regroup letters."""

    def decode(text: str) -> None:
        json.loads(text)

    one, other = describe(caught(decode, "{bad")), describe(caught(decode, "{} x"))
    assert "decoder.py" in one.trace
    assert one.fingerprint == other.fingerprint


def test_depth_of_a_recursion_does_not_count() -> None:
    """An endless recursion is one group, wherever it happened to end."""

    def deeper(left: int) -> int:
        if left == 0:
            raise RecursionError("too deep")
        return deeper(left - 1)

    def elsewhere(left: int, end: Callable[[], int]) -> int:
        return elsewhere(left - 1, end) if left else end()

    def here() -> int:
        raise RecursionError("too deep")

    def there() -> int:
        raise RecursionError("too deep")

    shallow, deep = describe(caught(deeper, 5)), describe(caught(deeper, 500))
    assert shallow.fingerprint == deep.fingerprint
    one, other = describe(caught(elsewhere, 5, here)), describe(caught(elsewhere, 5, there))
    assert one.fingerprint == other.fingerprint
    assert "frames …" in deep.trace
    assert deep.trace.count("\n") < 100
    assert deep.trace.endswith("RecursionError: too deep\n")


def test_explicit_causes_count_context_does_not() -> None:
    """One wrapper around two kinds of trouble is two groups; what was handled meanwhile is none."""

    def wrap(inner: Exception, *, explicit: bool) -> None:
        try:
            raise inner
        except Exception as error:
            if explicit:
                raise RuntimeError("order") from error
            raise RuntimeError("order")  # noqa: B904 - this is the case

    def found(inner: Exception, *, explicit: bool) -> Described:
        return describe(caught(lambda: wrap(inner, explicit=explicit)))

    a, b = found(ValueError("a"), explicit=True), found(KeyError("b"), explicit=True)
    c, d = found(ValueError("c"), explicit=False), found(KeyError("d"), explicit=False)
    assert a.fingerprint != b.fingerprint
    assert a.fingerprint == found(ValueError("z"), explicit=True).fingerprint
    assert c.fingerprint == d.fingerprint
    assert "The above exception was the direct cause" in a.trace
    assert "During handling of the above exception" in c.trace
    for trace, first in ((a.trace, "ValueError: a"), (d.trace, "KeyError: 'd'")):
        assert trace.index(first) < trace.index("RuntimeError: order")


def test_suppressed_context_is_left_out() -> None:
    """`raise … from None` hides what was handled."""

    def wrap() -> None:
        try:
            raise ValueError("secret")
        except ValueError:
            raise RuntimeError("order") from None

    assert "secret" not in describe(caught(wrap)).trace


def test_frames_of_sparkguard_are_dropped(tmp_path: Path) -> None:
    """Above the user's function, our own frames are noise, and no part of the group."""
    inside = Path(fingerprint.__file__).parent.parent / "executor" / "made_up.py"
    made: dict[str, Any] = {}
    source = "def run(function, value):\n    function(value)\n"
    exec(compile(source, str(inside), "exec"), made)
    user = module(tmp_path, PRICE)
    direct, run = caught(user, 1), caught(made["run"], user, 1)
    # Without the frame of this test, which in a pass is not there either.
    direct.__traceback__ = direct.__traceback__.tb_next  # type: ignore[union-attr]
    run.__traceback__ = run.__traceback__.tb_next  # type: ignore[union-attr]
    assert describe(run) == describe(direct)
    assert "made_up.py" not in describe(run).trace
    ours = caught(made["run"], None, 1)
    ours.__traceback__ = ours.__traceback__.tb_next  # type: ignore[union-attr]
    assert "made_up.py" in describe(ours).trace


def test_notes_and_groups_are_in_the_trace() -> None:
    """Notes and the members of a group say what the message does not."""
    error = ExceptionGroup("two", [ValueError("a"), KeyError("b")])
    error.add_note("order 7")
    trace = describe(error).trace
    assert "order 7\n" in trace
    assert "  | ValueError: a\n  | KeyError: 'b'\n" in trace


def test_message_and_trace_are_bounded() -> None:
    """P17: a message of 10 MB becomes `limit` characters, a trace keeps its end."""
    error = caught(price, 10**6)
    error.args = ("x" * 10_000_000,)
    found = describe(error)
    assert len(found.message) == 8192
    assert found.message.endswith("x…")
    assert len(found.trace) < 8192
    assert found.trace.endswith("x…\n")
    small = describe(error, limit=50)
    assert (len(small.message), len(small.trace)) == (50, 50)
    assert small.trace.startswith("…")
    nothing = describe(error, limit=0)
    assert (nothing.message, nothing.trace) == ("", "")
    assert small.fingerprint == found.fingerprint == nothing.fingerprint


def test_long_chains_are_bounded() -> None:
    """Hundreds of causes make no endless trace."""
    error: Exception = ValueError("first")
    for number in range(500):
        outer = RuntimeError(f"{number} " + "x" * 5000)
        outer.__cause__, error = error, outer
    found = describe(error)
    assert len(found.trace) <= 8192
    assert "RuntimeError: 499 x" in found.trace


def test_redacted() -> None:
    """P18: patterns mask the message, the trace, causes and notes."""

    def charge(card: str) -> None:
        try:
            raise ValueError(f"card {card} refused")
        except ValueError as error:
            error.add_note(f"note {card}")
            raise RuntimeError(f"cannot charge {card}") from error

    found = describe(caught(charge, "4111111111111111"), redact=(r"\d{16}", "charge"))
    assert found.message == "cannot *** ***"
    assert "4111" not in found.trace
    assert found.trace.count("***") >= 4


@pytest.mark.parametrize("start", range(8150, 8470, 3))
def test_secret_at_the_limit(start: int) -> None:
    """P18: what the limit cuts in two is masked all the same, also when masking made room."""
    message = "4111111111111111 " * 100 + "x" * start
    error = ValueError(message[:start] + "4222222222222222" + "y" * 1000)
    found = describe(error, redact=(r"\d{16}",))
    assert "42" not in found.message
    assert "42" not in found.trace


def test_invalid_pattern_hides_everything() -> None:
    """P18: where redaction cannot work, nothing is shown."""
    found = describe(ValueError("secret"), redact=("(",))
    assert "secret" not in found.message + found.trace


@pytest.mark.parametrize(
    ("raw", "message"),
    [
        ("\udc80 x", "\\udc80 x"),
        ("ü €", "ü €"),
        ("", ""),
        ("a\0b", "a\0b"),
    ],
)
def test_text_that_is_no_utf8(raw: str, message: str) -> None:
    """P17: lone surrogates become escapes, everything can be encoded."""
    found = describe(ValueError(raw))
    assert found.message == message
    assert (found.message + found.trace).encode()


class _Text(str):
    """A string with ideas of its own."""

    __slots__ = ()

    def __len__(self) -> int:
        raise RuntimeError

    def __getitem__(self, key: Any) -> str:
        raise RuntimeError


def _raise(error: BaseException) -> Callable[[Any], Any]:
    def method(self: Any) -> Any:
        raise error

    return method


ODD: list[Callable[[], BaseException]] = [
    named("a.B", __str__=_raise(ValueError("x"))),
    named("a.B", __str__=_raise(SystemExit(3))),
    named("a.B", __str__=_raise(RecursionError())),
    named("a.B", __str__=lambda self: 3),
    named("a.B", __str__=lambda self: None),
    named("a.B", __str__=lambda self: _Text("text")),
    named("a.B", __dict__=property(_raise(ValueError()))),
    named("a.B", __cause__=property(_raise(ValueError()))),
    named("a.B", __traceback__=property(_raise(ValueError()))),
    named("a.B", __getattribute__=lambda self, name: 1 / 0),
    named("a.B", __notes__="no list"),
    KeyError,
    lambda: StopIteration(b"\xff"),
    lambda: UnicodeDecodeError("utf-8", b"\xff", 0, 1, "x"),
    lambda: SystemExit(3),
    lambda: ExceptionGroup("x", [named("a.B", __str__=_raise(ValueError()))()]),
]


@pytest.mark.parametrize("make", ODD)
def test_never_raises(make: Callable[[], BaseException]) -> None:
    """P17: whatever an exception does, there is a type, a message and a fingerprint."""
    error = make()
    found = describe(error)
    assert found.types
    assert type(found.message) is str
    assert type(found.trace) is str
    assert len(found.fingerprint) == 16
    assert found == describe(error)


def test_cycles_end() -> None:
    """P17: exceptions that cause each other make a bounded trace."""
    one, two = ValueError("one"), KeyError("two")
    one.__cause__, two.__cause__ = two, one
    trace = describe(one).trace
    assert trace.count("ValueError: one") == 1
    assert trace.count("KeyError: 'two'") == 1


def test_hostile_classes() -> None:
    """P17: classes without hash, or with odd module names, have names all the same."""

    class Meta(type):
        def __hash__(cls) -> int:
            raise RuntimeError

    class OddError(Exception, metaclass=Meta):
        pass

    class NamelessError(Exception):
        __module__ = None  # type: ignore[assignment]

    assert describe(OddError("x")).types
    assert describe(NamelessError("x")).types[0].endswith("NamelessError")


def test_names() -> None:
    """One spelling for every class, nearest first."""
    assert type_names(json.JSONDecodeError) == (
        "json.decoder.JSONDecodeError",
        "ValueError",
        "Exception",
        "BaseException",
    )
    assert canonical("builtins.KeyError") == canonical("KeyError") == "KeyError"
    assert canonical("cimpl.KafkaException") == "confluent_kafka.KafkaException"
    assert canonical("confluent_kafka.cimpl.KafkaException") == "confluent_kafka.KafkaException"
    assert canonical("orders.Refused") == "orders.Refused"


def test_memory_is_bounded() -> None:
    """A worker that meets thousands of places does not keep them all."""
    for number in range(2000):
        made: dict[str, Any] = {}
        exec(f"def f():\n    raise ValueError({number})", made)
        describe(caught(made["f"]))
        type_names(type(f"E{number}", (Exception,), {}))
    assert len(fingerprint._places) <= 512
    assert len(fingerprint._names) <= 512


def test_collected_code_is_not_mistaken() -> None:
    """Ids of code objects that are gone come again; a remembered place must not meet them."""
    seen = set()
    for number in range(300):
        made: dict[str, Any] = {}
        exec(f"def f{number}():\n    raise ValueError", made)
        seen.add(describe(caught(made[f"f{number}"])).fingerprint)
    assert len(seen) == 300


def test_no_frame_is_kept() -> None:
    """What a failure leaves behind holds no frame, so no record of the user's either."""
    marker = object()

    def fail(value: object) -> None:
        raise ValueError(str(value))

    before = sys.getrefcount(marker)
    describe(caught(fail, marker))
    assert sys.getrefcount(marker) == before
