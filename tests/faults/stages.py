"""Functions whose records say what goes wrong; workers import them."""

import ctypes
import os
import signal
import time
from pathlib import Path
from typing import Any

import fsspec
import msgspec
from fsspec.implementations.local import LocalFileSystem

import sparkguard as sg


class Order(msgspec.Struct):
    """One record.

    Attributes:
        do: what happens to it: a key of `TRICKS`.
        at: the file by which the trick knows that it was played, or is to be played no more.
    """

    id: int
    do: str = ""
    at: str = ""


class Priced(msgspec.Struct):
    id: int
    total: float


def first_time(marker: str) -> bool:
    """Whether nobody asked before, in any process."""
    try:
        Path(marker).touch(exist_ok=False)
    except FileExistsError:
        return False
    return True


def _bad(order: Order) -> None:
    raise ValueError(f"order {order.id} is bad")


def _kill(order: Order) -> None:
    if first_time(order.at):
        os.kill(os.getpid(), signal.SIGKILL)


def _exit(order: Order) -> None:
    if first_time(order.at):
        os._exit(3)


def _fail_once(order: Order) -> None:
    if first_time(order.at):
        raise ConnectionError("once")


def _outage(order: Order) -> None:
    """The service is down until somebody makes the file; who asked is written down."""
    with Path(f"{order.at}.met").open("a") as met:
        met.write(f"{os.getpid()}\n")
    if not Path(order.at).exists():
        raise ConnectionError("the service is down")


def _slow_once(order: Order) -> None:
    """Hang the first time: until the file `.go` appears, a minute at most; then make `.gone`.

    Who hangs is in the file itself.
    """
    if first_time(order.at):
        Path(order.at).write_text(f"{os.getpid()}\n")
        deadline = time.monotonic() + 60
        while not Path(f"{order.at}.go").exists() and time.monotonic() < deadline:
            time.sleep(0.05)
        Path(f"{order.at}.gone").touch()


def _full_disk(order: Order) -> None:
    """From here on this worker may write no file."""
    import resource

    if not first_time(order.at):
        return
    # Without this the kernel ends the process instead of failing the write.
    signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (0, resource.getrlimit(resource.RLIMIT_FSIZE)[1]))


def _exit_by_exception(order: Order) -> None:
    raise SystemExit(3)


def _segfault(_: Order) -> None:
    ctypes.string_at(0)


def _exit_always(_: Order) -> None:
    os._exit(3)


def _sleep(_: Order) -> None:
    time.sleep(3600)


def _hold(_: Order) -> None:
    """Sleep, and let no other thread of Python run meanwhile."""
    ctypes.PyDLL(None).sleep(3600)


def _typo(order: Order) -> None:
    prize(order)  # type: ignore[name-defined]  # noqa: F821 - that is the trick


TRICKS: dict[str, Any] = {
    "": lambda _: None,
    "bad": _bad,
    "exit": _exit,
    "exit_always": _exit_always,
    "exit_by_exception": _exit_by_exception,
    "fail_once": _fail_once,
    "full_disk": _full_disk,
    "hold": _hold,
    "kill": _kill,
    "outage": _outage,
    "segfault": _segfault,
    "sleep": _sleep,
    "slow_once": _slow_once,
    "typo": _typo,
}


class FlakyFileSystem(LocalFileSystem):  # type: ignore[misc]
    """``flaky:///path``: local files, whose writing fails while the file `/path.down` is there."""

    protocol = "flaky"

    @classmethod
    def _strip_protocol(cls, path: str) -> str:
        return LocalFileSystem._strip_protocol(path.removeprefix("flaky://"))  # type: ignore[no-any-return]

    def open(self, path: str, mode: str = "rb", *args: Any, **options: Any) -> Any:
        down = any(Path(f"{parent}.down").exists() for parent in Path(path).parents)
        if "w" in mode and down:
            Path(f"{path.partition('/dead')[0]}/met").touch()
            raise OSError("the storage is down")
        return super().open(path, mode, *args, **options)


# Workers import this module, so they know the filesystem too.
fsspec.register_implementation("flaky", FlakyFileSystem, clobber=True)


def message(row: dict[str, Any], root: str = "", kills: str = "driver") -> bytes:
    """What is sent of a row; in the middle of the second batch, once, somebody is killed."""
    if root and row["id"] == 1500 and first_time(f"{root}/struck"):
        pids = Path(f"{root}/pids").read_text().split() if kills == "driver" else [str(os.getpid())]
        for pid in reversed(pids):
            os.kill(int(pid), signal.SIGKILL)
    return msgspec.json.encode(row)


decode = sg.deserialize(sg.Json(Order), name="decode")


@sg.map
def price(order: Order) -> Priced:
    """Do what the record says, then the business."""
    TRICKS[order.do](order)
    return Priced(order.id, order.id * 1.5)


@sg.filter
def worth_it(priced: Priced) -> bool:
    """Every tenth order is filtered."""
    return priced.id % 10 != 5
