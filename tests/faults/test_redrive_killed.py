"""A redrive is killed, and its broker goes: the journal knows how far it was."""

import json
import subprocess
import sys
from collections import Counter
from dataclasses import replace
from pathlib import Path

import pytest
from typer.testing import CliRunner

from sparkguard.cli import app
from sparkguard.core.replay import REDRIVE_ID
from sparkguard.deadletters.journal import Journal, Run
from sparkguard.deadletters.selection import Selection
from sparkguard.deadletters.store import Store
from sparkguard.errors import ProduceError
from sparkguard.redrive import work
from sparkguard.redrive.fates import Rules
from sparkguard.redrive.redrive import Redrive
from sparkguard.redrive.sending import Target
from sparkguard.sinks.base import SinkTask
from sparkguard.sinks.file import FileSink
from sparkguard.testing import sample_letters
from tests.conftest import MakeTopic
from tests.support.kafka import Broker

LETTERS = 100
CHUNK = 20
SETTINGS = "app: a\nredrive: {{bootstrap_servers: '{servers}', topic: {topic}}}\n"

KILLED = """
import os, signal, sys
from sparkguard.cli import app
from sparkguard.deadletters import journal
from sparkguard.redrive import work

work.CHUNK_LETTERS = 20
left = 2
append = journal.Journal.append

def killed(*given):
    global left
    left -= 1
    if left < 0:
        os.kill(os.getpid(), signal.SIGKILL)
    append(*given)

journal.Journal.append = killed
app(sys.argv[1:])
"""


@pytest.fixture
def letters(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Ids of letters that lie in the folder that commands run in."""
    monkeypatch.chdir(tmp_path)
    model = sample_letters()[0]
    writer = FileSink(path="dead-letters").open(SinkTask())
    found = []
    for number in range(LETTERS):
        record = replace(model.record, key=b"%d" % (number % 9), topic="in", offset=number)
        letter = replace(model, id=f"{number:032x}", failure=replace(model.failure, record=record))
        writer.write(letter)
        found.append(letter.id)
    writer.flush()
    return found


def _sent(broker: Broker, topic: str) -> Counter[str]:
    return Counter((one.header(REDRIVE_ID) or b"").decode() for one in broker.read_all(topic))


@pytest.mark.parametrize("more", [[], ["--keep-order"]])
def test_killed(broker: Broker, topic: MakeTopic, letters: list[str], more: list[str]) -> None:
    """Killed between acknowledgement and journal: one chunk goes twice, with the same ids."""
    to = topic(2)
    Path("guard.yaml").write_text(SETTINGS.format(servers=broker.servers, topic=to))
    command = ["dlq", "redrive", "--everything", "--config", "guard.yaml", *more]
    first = subprocess.run(
        [sys.executable, "-c", KILLED, *command], timeout=60, check=False, capture_output=True
    )
    assert first.returncode == -9, first.stderr
    (run,) = Journal("state/a").runs()
    assert (run.ended, Journal("state/a").position(run)) == ("", (2 * CHUNK, frozenset()))
    assert len(_sent(broker, to)) == 3 * CHUNK

    # The one that held the lock is gone; letters that came meanwhile are not of this redrive.
    newer = FileSink(path="dead-letters").open(SinkTask())
    newer.write(replace(sample_letters()[0], id="f" * 32))
    newer.flush()
    other = CliRunner().invoke(app, [*command, "--stage", "x"])
    assert (other.exit_code, f"--resume {run.id}" in other.stderr) == (1, True)
    done = CliRunner().invoke(app, [*command, "--json"])

    assert (done.exit_code, json.loads(done.stdout)["redrive"]) == (0, run.id), done.output
    sent = _sent(broker, to)
    assert {*sent} == {f"{run.id}/{one}" for one in letters}
    assert Counter(sent.values()) == {1: LETTERS - CHUNK, 2: CHUNK}


def test_the_broker_goes(letters: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    """What was acknowledged is noted, the error says how to go on, and that sends the rest."""
    monkeypatch.setattr(work, "CHUNK_LETTERS", CHUNK)
    sinks = {"default": FileSink(path="dead-letters")}
    with Broker() as broker, Store(sinks, state="state") as store:
        to = broker.create_topic("again", 2)
        impatient = {"delivery.timeout.ms": 1500, "request.timeout.ms": 1000, "linger.ms": 0}
        target = Target(servers=broker.servers, topic=to, config=impatient)
        redrive = Redrive("state", target, Rules(), sinks)

        def down(_run: Run, done: int) -> None:
            if done == 2 * CHUNK:
                broker.kill()

        with pytest.raises(ProduceError, match="go on with: sparkguard dlq redrive --resume"):
            redrive.start(store, Selection(), progress=down)
        (run,) = redrive.journal.runs()
        assert redrive.journal.position(run)[0] == 2 * CHUNK
        broker.start()
        patient = Redrive("state", replace(target, config={}), Rules(), sinks)
        done = patient.resume(run.id)

        assert (done.resumed, done.counts["sent"]) == (True, LETTERS - 2 * CHUNK)
        sent = _sent(broker, to)
        assert {*sent} == {f"{run.id}/{one}" for one in letters}
        assert Counter(sent.values()) == {1: LETTERS}
