"""What travels to the workers: code of importable modules by name, the rest whole, by value."""

import functools
import json
import pickle
import subprocess
import sys
import textwrap
import types
from pathlib import Path
from typing import Any

import cloudpickle
import msgspec
import pytest

from sparkguard.errors import StageError
from sparkguard.formats.json import Json
from sparkguard.pickling import dumps, loads, loads_on_worker, missing_on_worker
from sparkguard.stages.deserialize import deserialize
from sparkguard.stages.map import map
from tests.unit.stages import decorated

HERE = Path(__file__).parent
ROOT = HERE.parent.parent
SOURCE = (HERE / "travel" / "definitions.py").read_text()
SAVE = """
import sys, pathlib, msgspec
from sparkguard.pickling import dumps
# A user has tried the types before, which leaves caches in them.
msgspec.json.decode(b'{"id":1,"node":{"value":1}}', type=EXPORTED["Data"])
msgspec.json.decode(b'"red"', type=EXPORTED["Color"])
pathlib.Path(sys.argv[-1]).write_bytes(dumps(EXPORTED))
"""
FUTURE = "from __future__ import annotations\n"
MODES = {
    "__main__": SOURCE + SAVE,
    "__main__, textual annotations": FUTURE + SOURCE + SAVE,
    "notebook cell": (
        f"import sys\ncells = [{SOURCE!r}, {SAVE!r}]\n"
        "for cell in cells:\n"
        "    exec(compile(cell, '<cell>', 'exec'), sys.modules['__main__'].__dict__)\n"
    ),
    "local function": (
        "def local():\n"
        + textwrap.indent(SOURCE, "    ")
        + "    return EXPORTED\n\nEXPORTED = local()\n"
        + SAVE
    ),
}


def run(script: Path, *args: str) -> str:
    """What a fresh process prints."""
    command = [sys.executable, str(script), *args]
    done = subprocess.run(
        command,
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
        env={"PYTHONPATH": str(ROOT)},
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.fixture(scope="module", params=list(MODES))
def arrived(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Any:
    """What a fresh process saw of the definitions, made in one of four ways in another process."""
    home = tmp_path_factory.mktemp("travel")
    script, data = home / "job.py", home / "data"
    script.write_text(MODES[request.param])
    run(script, str(data))
    return json.loads(run(HERE / "travel" / "arrival.py", str(data)))


def test_struct(arrived: Any) -> None:
    """A struct keeps fields, settings, defaults, methods and checks; nothing is silently lost."""
    values, more, facts, unknown, missing, tag, frozen, keyword, encoded = arrived["struct"]
    assert values == [1, 2.5, "BLUE", 7, []]
    assert more == [1, 5.0, 1.25, 0.0, "order"]
    assert facts == [True, "An order.", True, True]
    assert "unknown field `zz`" in unknown
    assert "missing required field `orderId`" in missing
    assert "Invalid value 'x'" in tag
    assert "immutable type" in frozen
    assert "order_id" in keyword
    assert json.loads(encoded)["t"] == "o"


def test_struct_subclass(arrived: Any) -> None:
    """A subclass is still one, and `super()` works."""
    assert arrived["subclass"] == [6.0, True]


def test_generic_struct(arrived: Any) -> None:
    """A generic struct keeps its type variables."""
    assert arrived["generic"] is True


def test_dataclass(arrived: Any) -> None:
    """A dataclass keeps its fields, their types and their defaults."""
    assert arrived["dataclass"] == [True, [], "none", True]


def test_other_classes(arrived: Any) -> None:
    """TypedDicts and named tuples keep their types."""
    assert arrived["others"] == [{"id": 1}, 3, True]


def test_enum(arrived: Any) -> None:
    """An enum keeps its members, and may refer to a struct that refers to it."""
    assert arrived["enum"] == [True, True, ["RED", "BLUE"]]


def test_pydantic(arrived: Any) -> None:
    """A pydantic model validates as it did."""
    assert arrived["pydantic"] == [True, 2, True]


def test_exceptions(arrived: Any) -> None:
    """An exception of the user's own keeps its class, its name and its facts."""
    assert arrived["exception"] == ["__main__", "Unpriced", 3.0, "no price for 3.0"]


def test_one_class_stays_one(arrived: Any) -> None:
    """A class is one class in a pickle, and one in its process however often it arrives."""
    assert arrived["identity"] == [True, True, True]


def test_plain_cloudpickle_loses_the_fields() -> None:
    """Why this module exists: cloudpickle alone makes an empty struct, without a word."""
    script = (
        "import sys, cloudpickle, msgspec, pathlib\n"
        "class Order(msgspec.Struct):\n    id: int\n"
        "sys.stdout.buffer.write(cloudpickle.dumps(Order))\n"
    )
    data = subprocess.run([sys.executable, "-c", script], capture_output=True, check=True).stdout
    assert pickle.loads(data).__struct_fields__ == ()


@pytest.mark.parametrize(
    "thing", [decorated.price, decorated.twice, decorated.Order, decorated.loud, Json]
)
def test_importable_goes_by_reference(thing: Any) -> None:
    """What an importable module holds travels by name."""
    data = dumps(thing)
    assert loads(data) is thing
    assert len(data) < 200


@pytest.mark.parametrize("stage", [decorated.price, decorated.twice, decorated.other])
def test_function_behind_a_decorator_goes_by_reference(stage: Any) -> None:
    """The function that a decorator hides is found again, so a lock beside it does no harm."""
    assert loads(dumps(stage.function)) is stage.function
    innermost = stage.function
    while hasattr(innermost, "__wrapped__"):
        innermost = innermost.__wrapped__
    assert loads(dumps(innermost)) is innermost
    with pytest.raises(TypeError, match="lock"):
        cloudpickle.dumps(innermost)


def test_importable_module_with_a_lock_in_a_fresh_process(tmp_path: Path) -> None:
    """A flow's stages of a module that holds a lock arrive and run in another process."""
    data = tmp_path / "data"
    data.write_bytes(dumps([decorated.decode, decorated.price, functools.partial(decorated.price)]))
    script = tmp_path / "use.py"
    script.write_text(
        "import sys, pathlib\nfrom sparkguard.pickling import loads\n"
        "decode, price, bound = loads(pathlib.Path(sys.argv[1]).read_bytes())\n"
        "print(price(decode(b'{\"id\":1}')).id, bound(decode(b'{\"id\":2}')).id)\n"
        "from tests.unit.stages import decorated\nassert decorated.price is price\n"
    )
    assert run(script, str(data)).split() == ["2", "3"]


def test_local_stage_goes_by_value() -> None:
    """A stage of a local function travels whole, with the struct that it decodes."""

    class Local(msgspec.Struct):
        id: int

    @map(name="add")
    def add(order: Local) -> Local:
        return Local(order.id + 1)

    decode = deserialize(Json(Local), name="decode")
    copied_decode, copied_add = loads(dumps([decode, add]))
    assert copied_add is not add
    assert copied_add.name == "add"
    assert copied_add(copied_decode(b'{"id":1}')) == Local(2)


def test_registered_modules_go_by_value() -> None:
    """A module that the user registers with cloudpickle is shipped itself."""
    module = types.ModuleType("shipped_by_value")
    code = "import msgspec\nclass S(msgspec.Struct):\n    a: int\ndef f(x):\n    return S(x)\n"
    exec(code, module.__dict__)
    sys.modules[module.__name__] = module
    cloudpickle.register_pickle_by_value(module)
    try:
        data = dumps(module.f)
        assert len(data) > 300
    finally:
        cloudpickle.unregister_pickle_by_value(module)
        del sys.modules[module.__name__]
    assert loads(data)(3).a == 3


def test_loading_at_home_changes_nothing() -> None:
    """A class that this process has already is not rebuilt, and keeps its own methods."""

    class Local(msgspec.Struct):
        id: int

        def next(self) -> int:
            return self.id + 1

    before = Local.next
    assert loads(dumps(Local)) is Local
    assert Local.next is before


def test_what_cannot_travel_says_so() -> None:
    """A lock in a local function's scope is an error when it is pickled, not in the worker."""
    lock = decorated.LOCK

    def use(x: int) -> bool:
        return lock.locked()

    with pytest.raises(TypeError, match="lock"):
        dumps(use)


def test_missing_names_the_module_and_the_way_out() -> None:
    """The sentence names the module, the error and what to do."""
    with pytest.raises(ImportError) as caught:
        __import__("nowhere_to_be_found")
    sentence = missing_on_worker(caught.value)
    assert sentence.startswith("The module 'nowhere_to_be_found' cannot be imported on this worker")
    assert "ModuleNotFoundError: No module named 'nowhere_to_be_found'" in sentence
    assert "install the module or the plugin on every worker" in sentence


def test_missing_nameless() -> None:
    """An error without a name still makes a sentence."""
    assert missing_on_worker(ImportError("odd")).startswith("A module cannot be imported on this")


def test_a_worker_says_what_it_lacks() -> None:
    """What names a module that is not here is refused with that sentence, not as an ImportError."""
    with pytest.raises(StageError, match="'nowhere_to_be_found' cannot be imported on this worker"):
        loads_on_worker(b"cnowhere_to_be_found\nThing\n.")
