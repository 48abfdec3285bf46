"""Letters sent back over a real broker; ids and bytes are compared, never counts alone."""

import json
import signal
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner, Result

from sparkguard.cli import app
from sparkguard.core.instant import milliseconds
from sparkguard.core.letter import Letter
from sparkguard.core.record import Header, Record
from sparkguard.core.replay import REDRIVE_ID, REPLAYS
from sparkguard.deadletters.journal import Journal, Run
from sparkguard.deadletters.lock import Lock, only_one
from sparkguard.deadletters.selection import Selection
from sparkguard.deadletters.store import Store
from sparkguard.dialects.spring import SpringDialect
from sparkguard.errors import LettersError
from sparkguard.redrive import work
from sparkguard.redrive.fates import Rules
from sparkguard.redrive.redrive import Redrive
from sparkguard.redrive.sending import Pace, Parcel, Sender, Target
from sparkguard.sinks import _kafka_producer
from sparkguard.sinks.base import SinkTask
from sparkguard.sinks.file import FileSink
from sparkguard.sinks.kafka import KafkaSink
from sparkguard.testing import sample_letters
from tests.conftest import MakeTopic
from tests.support.kafka import Broker, Message

NOW = datetime.now(UTC).replace(microsecond=123_000)
MODEL = sample_letters()[0]

Call = Callable[..., Result]
Meanwhile = Callable[[float], None]


def _letter(number: int, replays: int = 0, **facts: Any) -> Letter:
    known: dict[str, Any] = {
        "key": (None, b"", b"\xff\x00", b"k%d" % (number % 5))[min(number % 7, 3)],
        "value": None if number % 6 == 5 else b'{"id": %d}\xff' % number,
        "headers": (("h", b"\x00"), ("h", None), ("ü", b"2"))[: number % 4],
        "timestamp": NOW,
        "topic": "orders",
        "partition": number % 4,
        "offset": number,
    }
    headers: tuple[Header, ...] = ((REPLAYS, b"%d" % replays),) if replays else ()
    record = Record(**{**known, **facts})
    record = replace(record, headers=(*record.headers, *headers))
    failure = replace(MODEL.failure, record=record, fingerprint="even" if number % 2 == 0 else "od")
    return replace(MODEL, id=f"{number:032x}", failure=failure, replays=replays)


def _write(sink: Any, letters: Sequence[Letter]) -> None:
    writer = sink.open(SinkTask(name="dead"))
    for letter in letters:
        writer.write(letter)
    writer.flush()


@pytest.fixture
def call(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, broker: Broker) -> Call:
    """Runs `sparkguard dlq redrive …` with settings that name the topic `to`."""
    monkeypatch.chdir(tmp_path)

    def run(*arguments: str, to: str, command: str = "redrive", **redrive: Any) -> Result:
        target = {"bootstrap_servers": broker.servers, "topic": to, **redrive}
        sinks = {
            "default": {"type": "file", "path": "dead-letters"},
            "lot": {"type": "file", "path": "lot"},
        }
        document = {"app": "a", "sinks": sinks, "redrive": target}
        Path("guard.yaml").write_text(json.dumps(document))
        return CliRunner().invoke(app, ["dlq", command, *arguments, "--config", "guard.yaml"])

    return run


def _own(message: Message) -> tuple[Header, ...]:
    return tuple(one for one in message.headers if not one[0].startswith("sparkguard."))


def _ids(messages: Sequence[Message]) -> list[int]:
    """Of the letters, by the redrive id of what was sent."""
    return [int((one.header(REDRIVE_ID) or b"").rpartition(b"/")[2], 16) for one in messages]


def test_the_record_as_it_was(broker: Broker, topic: MakeTopic, call: Call) -> None:
    """Key, value, headers, timestamp and partition are the original's; each goes once."""
    to = topic(partitions=3)
    letters = [_letter(number) for number in range(40)]
    _write(FileSink(path="dead-letters"), letters)
    dry = call("even", "--dry-run", "--json", to=to)
    assert json.loads(dry.stdout)["letters"]["send"] == 20
    assert broker.read_all(to) == []

    done = call("even", "--json", to=to)
    assert done.exit_code == 0, done.output
    assert json.loads(done.stdout)["sent"] == 20
    sent = broker.read_all(to)
    assert sorted(_ids(sent)) == list(range(0, 40, 2))
    for message, number in zip(sent, _ids(sent), strict=True):
        record = letters[number].record
        assert (message.key, message.value, _own(message)) == (
            record.key,
            record.value,
            record.headers,
        )
        assert message.timestamp == milliseconds(NOW)
        assert message.header(REPLAYS) == b"1"
        if number % 4 < 3:
            assert message.partition == number % 4

    rest = call("--everything", "--json", to=to)
    assert (json.loads(rest.stdout)["sent"], json.loads(rest.stdout)["already"]) == (20, 20)
    assert "40 letters were sent back before" in call("--everything", to=to).stdout
    assert json.loads(call("even", "--again", "--json", to=to).stdout)["sent"] == 20
    assert len(broker.read_all(to)) == 60


def test_letters_of_a_topic(broker: Broker, topic: MakeTopic, tmp_path: Path) -> None:
    """Without settings: letters that another tool wrote, from a topic to a topic that is named."""
    dead, to = topic(), topic()
    sink = KafkaSink(bootstrap_servers=broker.servers, topic=dead, dialect=SpringDialect())
    _write(sink, [_letter(number) for number in (1, 2)])
    where = ["--topic", dead, "--bootstrap-servers", broker.servers, "--state", str(tmp_path)]
    run = CliRunner()
    arguments = ["dlq", "redrive", *where, "--everything", "--to", to]
    done = run.invoke(app, arguments)
    assert done.exit_code == 0, done.output
    assert "Sent 2 letters" in done.stdout
    assert {(one.key, one.value, _own(one)) for one in broker.read_all(to)} == {
        (one.key, one.value, one.headers) for one in (_letter(1).record, _letter(2).record)
    }
    loop = run.invoke(app, [*arguments[:-1], dead])
    assert (loop.exit_code, "letters are no place to send" in loop.stderr) == (1, True)
    # Marks of a topic's letters lie in the state.
    marked = run.invoke(app, ["dlq", "resolve", *where, "--everything", "--reason", "seen"])
    assert "Marked 2 letters" in marked.stdout, marked.output
    assert run.invoke(app, ["dlq", "ls", *where]).stdout == "No letters.\n"


def test_no_loop_is_endless(broker: Broker, topic: MakeTopic, call: Call) -> None:
    """Who was sent back too often goes to the parking lot, or stays where there is none."""
    to = topic()
    _write(FileSink(path="dead-letters"), [_letter(number, replays=number) for number in range(5)])
    stays = call("--everything", "--dry-run", "--json", to=to, max_replays=2)
    assert json.loads(stays.stdout)["letters"]["worn_out"] == 3
    done = call("--everything", "--json", to=to, max_replays=2, parking_lot="lot")
    told = json.loads(done.stdout)
    assert (done.exit_code, told["sent"], told["parked"]) == (0, 2, 3)
    assert [(n, one.header(REPLAYS)) for one in broker.read_all(to) for n in _ids([one])] == [
        (0, b"1"),
        (1, b"2"),
    ]
    parked = CliRunner().invoke(app, ["dlq", "stats", "--path", "lot", "--json"])
    assert json.loads(parked.stdout)["letters"] == 3
    again = json.loads(call("--everything", "--json", to=to, parking_lot="lot").stdout)
    assert (again["already"], again["sent"], again["parked"]) == (5, 0, 0)


def test_too_large(broker: Broker, topic: MakeTopic, call: Call) -> None:
    """What the topic refuses is named and left, the rest of its batch goes on."""
    to = topic(max_message_bytes="3000")
    letters = [_letter(number) for number in range(10)]
    letters[4] = _letter(4, value=b"x" * 5_000)
    _write(FileSink(path="dead-letters"), letters)
    done = call("--everything", to=to)
    assert done.exit_code == 1
    assert f"left: letter {letters[4].id}: too large for the topic" in done.stderr
    assert sorted(_ids(broker.read_all(to))) == [0, 1, 2, 3, 5, 6, 7, 8, 9]
    (one,) = json.loads(call("--json", to=to, command="redrives").stdout)["redrives"]
    found = one["outcomes"]
    assert (found["waiting"], found["left"], found["to_go"]) == (9, 1, 0)
    # It has not gone, so the next redrive means it again.
    broker_side = json.loads(call("--everything", "--dry-run", "--json", to=to).stdout)
    assert broker_side["letters"]["send"] == 1


def test_keep_order(broker: Broker, topic: MakeTopic, call: Call) -> None:
    """A key's letters go to one partition, in the order of their own partitions and offsets."""
    to = topic(partitions=3)
    letters = [
        _letter(number, key=b"k%d" % (number % 6), partition=number // 6 % 2)
        for number in range(120)
    ]
    _write(FileSink(path="dead-letters"), letters[::-1])
    done = call("--everything", "--keep-order", "--json", to=to)
    assert (done.exit_code, json.loads(done.stdout)["sent"]) == (0, 120)
    found: dict[bytes | None, list[Message]] = {}
    for message in broker.read_all(to):
        found.setdefault(message.key, []).append(message)
    for at, key in enumerate(sorted(filter(None, found))):
        assert len({one.partition for one in found[key]}) == 1
        assert _ids(found[key]) == [*range(at, 120, 12), *range(at + 6, 120, 12)]


def test_to_origin(broker: Broker, topic: MakeTopic, call: Call) -> None:
    """Each goes to where it first came in, also one that came back; a warning is said."""
    first, second = topic(partitions=4), topic(partitions=4)
    marks = (("sparkguard.origin.topic", second.encode()), ("sparkguard.origin.partition", b"2"))
    letters = [_letter(1, topic=first), _letter(2, topic="redriven", headers=marks)]
    _write(FileSink(path="dead-letters"), letters)
    done = call("--everything", "--to-origin", to="redriven")
    assert done.exit_code == 0, done.output
    assert "Every consumer group" in done.stderr
    assert (_ids(broker.read_all(first)), _ids(broker.read_all(second))) == ([1], [2])
    assert broker.read_all(second)[0].partition == 2


def test_refused(broker: Broker, topic: MakeTopic, call: Call) -> None:
    """What cannot be done is a sentence, and nothing is sent or noted."""
    to = topic()
    _write(FileSink(path="dead-letters"), [_letter(1)])
    for arguments, target, code, sentence in (
        ((), to, 2, "say which letters"),
        (("--everything", "--to", "x", "--to-origin"), to, 2, "exclude each other"),
        (("--everything", "--resume", "r"), to, 2, "were chosen then"),
        (("--resume", "nope"), to, 1, "is no redrive of this state"),
        (("--everything",), "nowhere", 1, "There is no topic 'nowhere'"),
        (("--everything", "--to-origin"), to, 1, "There is no topic 'orders'"),
        (("--everything", "--to-servers", "127.0.0.1:1"), to, 1, "No broker answers"),
        (("abc",), to, 1, "There is no letter whose id"),
    ):
        done = call(*arguments, to=target)
        said = " ".join(done.stderr.replace("│", "").split())
        assert (done.exit_code, sentence in said) == (code, True), said
    bad = call("--everything", to=to, parking_lot="nope")
    assert (bad.exit_code, "is none of the sinks" in bad.stderr) == (1, True)
    assert Journal("state/a").runs() == []
    assert broker.read_all(to) == []


def test_two_at_once(topic: MakeTopic, call: Call) -> None:
    """While one is running, the next one is refused and told by whom."""
    to = topic()
    _write(FileSink(path="dead-letters"), [_letter(1)])
    with only_one("state/a") as lock:
        done = call("--everything", to=to)
        assert done.exit_code == 1
        assert f"process {lock.holder['pid']}" in done.stderr
        assert call("--everything", "--take-over", to=to).exit_code == 0
    assert call("--everything", to=to).exit_code == 0


def test_taken_over(broker: Broker, topic: MakeTopic, call: Call) -> None:
    """Whoever lost the lock sends no further chunk."""
    to = topic()
    _write(FileSink(path="dead-letters"), [_letter(1)])
    sinks = {"default": FileSink(path="dead-letters")}
    redrive = Redrive("state", Target(servers=broker.servers, topic=to), Rules(), sinks)

    def taken(_run: Run, _done: int) -> None:
        Lock(str(Path("state/redriving.json").resolve())).take(take_over=True)

    with Store(sinks, state="state") as store, pytest.raises(LettersError, match="took over"):
        redrive.start(store, Selection(), progress=taken)
    assert broker.read_all(to) == []


def _pace(free: int, then: Callable[[Meanwhile], None]) -> type[Pace]:
    """A pace that lets so many go and calls `then` before each further one."""
    given = iter(range(free))

    class Interrupted(Pace):
        def wait(self, meanwhile: Meanwhile) -> None:
            if next(given, None) is None:
                then(meanwhile)
            meanwhile(0)

    return Interrupted


def _interrupt(_: Meanwhile) -> None:
    raise KeyboardInterrupt


def test_interrupted(broker: Broker, topic: MakeTopic) -> None:
    """What was handed over and not sent when it ends does not go later, noted by nobody."""
    to = topic()
    target = Target(servers=broker.servers, topic=to, config={"linger.ms": 20_000})
    parcels = [Parcel(at, f"{at}", _kafka_producer.Message(to, b"v")) for at in range(10)]

    sender = Sender(target, _pace(5, _interrupt)(None), keep_order=False)
    with pytest.raises(KeyboardInterrupt):
        sender.send(parcels)
    assert sender.entries == []
    _kafka_producer.client(target.client, "redrive").producer.flush(20)
    assert broker.read_all(to) == []


def test_interrupted_in_a_chunk(
    broker: Broker, topic: MakeTopic, call: Call, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What was acknowledged of a chunk is noted, and only the rest of it goes later."""
    to = topic()
    _write(FileSink(path="dead-letters"), [_letter(number) for number in range(10)])

    def once_acknowledged(meanwhile: Meanwhile) -> None:
        until = time.monotonic() + 30
        while broker.end_offsets(to)[0] < 6 and time.monotonic() < until:
            meanwhile(0.1)
        meanwhile(0.1)
        raise KeyboardInterrupt

    with monkeypatch.context() as patched:
        patched.setattr(work, "Pace", _pace(6, once_acknowledged))
        assert call("--everything", to=to).exit_code != 0
    journal = Journal("state/a")
    (run,) = journal.runs()
    first, noted = journal.position(run)
    assert (first, len(noted)) == (0, 6)
    done = call("--everything", "--json", to=to)
    assert (done.exit_code, json.loads(done.stdout)["sent"]) == (0, 4)
    assert sorted(_ids(broker.read_all(to))) == list(range(10))


def test_ctrl_c(
    broker: Broker, topic: MakeTopic, call: Call, monkeypatch: pytest.MonkeyPatch
) -> None:
    """P1: what was under way is waited for and noted, so nothing goes twice."""
    to = topic()
    _write(FileSink(path="dead-letters"), [_letter(number) for number in range(10)])

    before = signal.getsignal(signal.SIGINT)
    with monkeypatch.context() as patched:
        patched.setattr(work, "Pace", _pace(6, lambda _: signal.raise_signal(signal.SIGINT)))
        done = call("--everything", to=to)
    assert signal.getsignal(signal.SIGINT) is before
    (run,) = Journal("state/a").runs()
    assert (done.exit_code, f"--resume {run.id}" in done.stderr) == (130, True)
    assert len(Journal("state/a").position(run)[1]) == len(broker.read_all(to)) == 6
    done = call("--resume", run.id, "--json", to=to)
    assert (done.exit_code, json.loads(done.stdout)["sent"]) == (0, 4)
    assert sorted(_ids(broker.read_all(to))) == list(range(10))


def test_what_cannot_go(broker: Broker, topic: MakeTopic, call: Call) -> None:
    """Pointers, rows and letters of a later version are counted, and make the exit code 1."""
    to = topic()
    letters = [_letter(number) for number in range(5)]
    letters[1] = replace(letters[1], overflow="elsewhere")
    letters[2] = replace(letters[2], failure=replace(letters[2].failure, payload="row"))
    letters[3] = replace(letters[3], failure=replace(letters[3].failure, payload="later"))
    letters[4] = _letter(4, topic=None, partition=None, offset=None, columns='{"a": 1}')
    _write(FileSink(path="dead-letters"), letters)
    Path("dead-letters/half.parquet").write_bytes(b"PAR1")
    done = call("--everything", "--json", to=to)
    told = json.loads(done.stdout)
    assert (done.exit_code, told["ok"], told["sent"]) == (1, False, 1)
    assert (told["pointer"], told["row"], told["newer"]) == (1, 2, 1)
    assert "half.parquet" in done.stderr
    assert _ids(broker.read_all(to)) == [0]


def test_rate(broker: Broker, topic: MakeTopic, call: Call) -> None:
    """No more go in a second than asked for."""
    to = topic()
    _write(FileSink(path="dead-letters"), [_letter(number) for number in range(31)])
    began = time.monotonic()
    assert call("--everything", "--rate", "20", to=to).exit_code == 0
    assert time.monotonic() - began >= 30 / 20
    assert len(broker.read_all(to)) == 31
