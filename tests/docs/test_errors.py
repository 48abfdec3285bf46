"""The page on errors has the sentences that are really said."""

from collections.abc import Callable, Iterator
from typing import Any

import pytest

import sparkguard as sg
from sparkguard import errors
from sparkguard.config.load import loads
from tests.docs.conftest import ROOT

PAGE = (ROOT / "docs/errors.md").read_text()


def _load(text: str) -> Callable[[], Any]:
    return lambda: loads(text, "guard.yaml")


def _build(text: str, kind: str = "map") -> Callable[[], Any]:
    def build() -> None:
        guard = sg.Guard(loads(text, "guard.yaml"))
        if kind == "map":
            guard.flow(sg.map(price), name="orders")
        else:
            guard.foreach_batch(store)

    return build


def price(order: int) -> str:
    """Gives a text."""
    return str(order)


def store(_batch: Any, _batch_id: int) -> None:
    """Does nothing."""


def _no_annotation() -> None:
    sg.Guard().flow(sg.map(lambda order: order, name="price"), name="orders")


def _generator() -> None:
    @sg.foreach_batch
    def store(_batch: Any, _batch_id: int) -> Iterator[None]:
        yield


def _lambda() -> None:
    sg.map(lambda order: order)


def _same_flow() -> None:
    guard = sg.Guard()
    guard.flow(sg.map(price), name="orders")
    guard.flow(sg.map(price, name="other"), name="orders")


SAID: dict[str, tuple[type[Exception], Callable[[], Any]]] = {
    "Unknown key 'stagess'. Did you mean 'stages'?": (
        errors.InvalidSettingError,
        _load("app: orders\nstagess: {}\n"),
    ),
    "A duration needs a unit: write '30s' or '500ms', not a bare number.": (
        errors.InvalidSettingError,
        _load("defaults: {task_timeout: 30}\n"),
    ),
    "The environment variable 'KAFKA' is not set, and there is no default: "
    "set it, or write ${KAFKA:-default}.": (
        errors.InvalidSettingError,
        _load('sinks: {default: {type: kafka, bootstrap_servers: "${KAFKA}", topic: t}}\n'),
    ),
    "Duplicate key 'app'; the first stands in line 1.": (
        errors.InvalidSettingError,
        _load("app: orders\napp: other\n"),
    ),
    "Skipping or dead-lettering a whole batch must be asked for in so many words": (
        errors.ConfigError,
        _build("stages: {store: {handler: dead_letter}}\n", "foreach_batch"),
    ),
    "Unknown handler 'deadletter'. Did you mean 'dead_letter'?": (
        errors.UnknownNameError,
        _build("stages: {price: {handler: deadletter}}\n"),
    ),
    "Unknown sink 'topic'. Known: 'default'.": (
        errors.UnknownNameError,
        _build("stages: {price: {sink: topic}}\n"),
    ),
    "Stage 'price': it has no return annotation": (errors.StageError, _no_annotation),
    "Stage 'store': it is a generator: Spark would commit every batch without running it.": (
        errors.StageError,
        _generator,
    ),
    "A lambda has no name: say name=.": (errors.StageError, _lambda),
    "The guard has another flow named 'orders'; name this one otherwise.": (
        errors.StageError,
        _same_flow,
    ),
}


@pytest.mark.parametrize("sentence", SAID)
def test_said(sentence: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A sentence on the page is the sentence that is raised."""
    monkeypatch.delenv("KAFKA", raising=False)
    kind, provoke = SAID[sentence]
    with pytest.raises(kind) as caught:
        provoke()
    assert sentence in str(caught.value)
    assert sentence in PAGE


def test_every_class() -> None:
    """Every class of the tree stands on the page."""
    for name, value in vars(errors).items():
        if isinstance(value, type) and issubclass(value, errors.SparkguardError):
            assert name in PAGE, name
