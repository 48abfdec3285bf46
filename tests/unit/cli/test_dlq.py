"""The commands that look at letters, run as a person would."""

import json
from collections.abc import Callable
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from pyarrow import parquet as pq
from typer.testing import CliRunner, Result

from sparkguard.cli import app
from sparkguard.cli.shown import Form, masked, payload, safe, sparkline
from sparkguard.core.letter import Letter
from sparkguard.core.record import Record
from sparkguard.sinks.base import SinkTask
from sparkguard.sinks.file import FileSink
from sparkguard.testing import sample_letters

WHEN = datetime(2024, 2, 29, 12, tzinfo=UTC)
EVIL = "\x1b]0;owned\x07\x1b[2J\x9b31m\u202eevil"

Run = Callable[..., Result]


def _letter(number: int, value: bytes | None = b'{"id": 1}', **facts: Any) -> Letter:
    model = sample_letters()[0]
    record = Record(key=b"k", value=value, topic="orders", partition=0, offset=number)
    given = {"last_failed_at": WHEN + timedelta(minutes=number), "record": record, **facts}
    return replace(model, id=f"{number:032x}", failure=replace(model.failure, **given))


@pytest.fixture
def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Run:
    """Runs `sparkguard dlq …` in a folder of its own; letters given to it are stored first."""
    monkeypatch.chdir(tmp_path)

    def call(*arguments: str, letters: list[Letter] | None = None) -> Result:
        if letters:
            writer = FileSink(path="dead-letters").open(SinkTask(app="a"))
            for letter in letters:
                writer.write(letter)
            writer.flush()
        return CliRunner().invoke(app, ["dlq", *arguments])

    return call


HERE = ("--path", "dead-letters")


def test_ls(run: Run) -> None:
    """Groups, the largest first, to people and to programs."""
    letters = [_letter(at, fingerprint="aa" if at else "bb") for at in range(4)]
    shown = run("ls", *HERE, letters=letters)
    assert shown.exit_code == 0
    _, first, second, last = shown.stdout.splitlines()
    assert first.split()[:4] == ["aa", "3", "decode", "builtins.ValueError"]
    assert second.startswith("bb")
    assert last == "4 letters in 2 groups. Times are UTC."
    told = json.loads(run("ls", *HERE, "--json").stdout)
    assert [(one["fingerprint"], one["count"]) for one in told["groups"]] == [("aa", 3), ("bb", 1)]
    assert (told["letters"], told["skipped"]) == (4, [])
    one = json.loads(run("ls", *HERE, "--json", "--limit", "1").stdout)
    assert (len(one["groups"]), one["letters"]) == (1, 4)
    assert "1 letter in 1 group." in run("ls", *HERE, "--since", "2024-02-29T12:03").stdout
    assert run("ls", *HERE, "--since", "1h").stdout == "No letters.\n"


def test_ls_of_settings(run: Run) -> None:
    """The sinks of a settings file are read together, or the one that is named."""
    Path("guard.yaml").write_text("app: a\nsinks: {more: {type: file, path: more}}\n")
    run("ls", *HERE, letters=[_letter(1)])
    writer = FileSink(path="more").open(SinkTask())
    writer.write(_letter(2))
    writer.flush()
    both = json.loads(run("ls", "--config", "guard.yaml", "--json").stdout)
    assert both["letters"] == 2
    one = json.loads(run("ls", "--config", "guard.yaml", "--sink", "more", "--json").stdout)
    assert one["letters"] == 1
    wrong = run("ls", "--config", "guard.yaml", "--sink", "mor")
    assert (wrong.exit_code, "Did you mean 'more'?" in wrong.stderr) == (1, True)


def test_what_waits_is_no_dead_letter(run: Run) -> None:
    """A retry topic is left out, so its broker is not asked, unless it is named."""
    Path("guard.yaml").write_text(
        "app: a\nstages: {price: {retry_later: {delays: [1m]}}}\nredrive: {topic: again}\nsinks:\n"
        "  retry: {type: kafka, bootstrap_servers: '127.0.0.1:1', topic: later}\n"
    )
    shown = run("ls", "--config", "guard.yaml", "--json", letters=[_letter(1)])
    assert (shown.exit_code, json.loads(shown.stdout)["letters"]) == (0, 1)
    assert run("ls", "--config", "guard.yaml", "--sink", "retry").exit_code == 1


def test_show(run: Run) -> None:
    """A letter by the beginning of its id, the latest ones of a failure by its fingerprint."""
    letters = [_letter(at, fingerprint="aabb") for at in (1, 2)]
    shown = run("show", letters[0].id, *HERE, letters=letters)
    assert shown.exit_code == 0
    for part in ("orders[0]@1", "builtins.ValueError", "Traceback", '{\n  "id": 1\n}'):
        assert part in shown.stdout
    group = run("show", "aab", *HERE).stdout
    assert group.startswith("aabb: 2 letters of decode, from 2024-02-29 12:01:00 to ")
    assert (letters[1].id in group, letters[0].id in group) == (True, False)
    both = json.loads(run("show", "aabb", *HERE, "--limit", "5", "--json").stdout)
    assert [one["id"] for one in both] == [letters[1].id, letters[0].id]
    assert both[0]["value"] == '{"id": 1}'
    for which, sentence in (("0000", "more than one id"), ("nope", "There is no letter")):
        refused = run("show", which, *HERE)
        assert (refused.exit_code, sentence in refused.stderr) == (1, True)
    assert run("show", " ", *HERE).exit_code == 2


@pytest.mark.parametrize("command", [("show", "e"), ("ls",), ("stats",), ("sql", "from letters")])
def test_nothing_that_a_terminal_obeys(run: Run, command: tuple[str, ...]) -> None:
    """Whatever a letter holds, no control character of it reaches the terminal, in any form."""
    record = Record(
        key=EVIL.encode(), value=EVIL.encode(), headers=((EVIL, EVIL.encode()),), topic=EVIL
    )
    facts: dict[str, Any] = {
        "stage": EVIL,
        "message": EVIL,
        "trace": EVIL,
        "exception_types": (EVIL,),
    }
    run("ls", *HERE, letters=[_letter(1, record=record, fingerprint=f"e{EVIL}", **facts)])
    for form in ((), ("--json",)):
        shown = run(*command, *HERE, *form)
        assert shown.exit_code == 0
        assert "owned" in shown.stdout
        assert not {*shown.stdout} & {*"\x1b\x07\x9b\u202e"}
    assert json.loads(run("show", "e", *HERE, "--json").stdout)[0]["message"] == EVIL


def test_redact(run: Run) -> None:
    """--redact hides what record and exception say, and keeps facts, names and frames."""
    trace = 'Traceback (most recent call last):\n  File "a.py", line 1, in f\n    x\nE: secret\n'
    record = Record(key=b"secret", value=b'{"a": ["secret", 1, null]}', headers=(("h", b"secret"),))
    facts: dict[str, Any] = {"message": "secret", "trace": trace, "record": record}
    run("ls", *HERE, letters=[_letter(1, **facts)])
    for form in ((), ("--json",), ("--as", "hex"), ("--as", "text")):
        shown = run("show", "0", *HERE, "--redact", *form)
        assert shown.exit_code == 0
        assert "secret" not in shown.stdout
        assert "a.py" in shown.stdout
    assert '"***",\n    "***",\n    null' in run("show", "0", *HERE, "--redact").stdout
    run("export", "out.jsonl", *HERE, "--redact")
    assert "secret" not in Path("out.jsonl").read_text()
    assert run("export", "out.parquet", *HERE, "--redact").exit_code == 2


def test_payloads() -> None:
    """Bytes are shown as JSON, as text or in hexadecimal, whatever they are."""
    assert payload(None) == "null"
    assert payload(b'{"a":1}') == '{\n  "a": 1\n}'
    assert payload(b'{"a":1}', Form.TEXT) == '{"a":1}'
    assert payload("naïve".encode()) == "naïve"
    assert payload(b"\xff\x1b") == f"00000000  {'ff 1b':<47}  .."
    assert payload(b"\xffa", Form.TEXT) == "\\xffa"
    assert payload(b"", Form.HEX) == "(empty)"
    assert payload(b"[" * 100_000) == "[" * 100_000
    assert safe("\ud800\x9b\t\n") == "\\ud800\\x9b\t\n"
    assert masked({"a": [1, None]}) == {"a": ["***", None]}
    assert sparkline([0, 1, 4, 8, 8]) == " ▁▄██"
    assert sparkline([0, 0]) == "  "


def test_long_payloads(run: Run) -> None:
    """A large value is cut, never within a character; binary stays binary."""
    letters = [_letter(1, "ä".encode() * 5_000), _letter(2, b"\xff" * 5_000, fingerprint="b")]
    shown = run("show", letters[0].id, *HERE, "--bytes", "5", letters=letters).stdout
    assert "ää\n… 5 of 10,000 bytes; see --bytes." in shown
    shown = run("show", letters[1].id, *HERE, "--bytes", "2").stdout
    assert "00000000  ff ff" in shown


def test_stats(run: Run) -> None:
    """Counts by what letters differ in, and of second copies."""
    run("ls", *HERE, letters=[_letter(1), _letter(2, stage="price")])
    shown = run("stats", *HERE, letters=[_letter(1)]).stdout
    assert shown.startswith("2 letters in 1 group, and 1 second copies that do not count.\n")
    by = json.loads(run("stats", *HERE, "--json").stdout)["by"]
    assert by["stage"] == {"decode": 1, "price": 1}
    assert by["day"] == {"2024-02-29": 2}
    assert by["sink"] == {"path": 2}


def test_sql(run: Run) -> None:
    """A query is answered, a mistake in it is a sentence."""
    query = 'select "offset" + 1 as next, value, seen from letters order by 1'
    shown = run("sql", query, *HERE, letters=[_letter(1), _letter(2, b"\xff")])
    assert shown.stdout.splitlines()[1].split()[:3] == ["2", '{"id":', "1}"]
    told = json.loads(run("sql", query, *HERE, "--json", "--limit", "1").stdout)
    when = "2024-02-29T12:01:00+00:00"
    assert told == {"rows": [{"next": 2, "value": '{"id": 1}', "seen": when}], "more": True}
    wrong = run("sql", "select nope from letters", *HERE, "--json")
    assert wrong.exit_code == 1
    assert "nope" in json.loads(wrong.stdout)["problems"][0]
    assert run("sql", query, *HERE, "--stage", "price").exit_code == 2
    odd = "select 'nan'::double as a, 1 as a, '-inf'::float as b"
    assert json.loads(run("sql", odd, *HERE, "--json").stdout)["rows"] == [
        {"a": "nan", "a_1": 1, "b": "-inf"}
    ]


def test_what_a_mistake_says(run: Run) -> None:
    """P18: an error that quotes a letter holds nothing that a terminal would obey."""
    told = run("sql", "select stage::int from letters", *HERE, letters=[_letter(1, stage=EVIL)])
    assert told.exit_code == 1
    assert "owned" in told.stderr
    assert not {"\x1b", "\x07", "\u202e"} & {*told.stderr}


def test_export(run: Run) -> None:
    """Letters in one file, whole or not at all, which is never one that was there."""
    letters = [_letter(1), _letter(2, b"\xff", stage="price")]
    done = run("export", "out.jsonl", *HERE, "--json", letters=letters)
    assert json.loads(done.stdout) == {"ok": True, "file": "out.jsonl", "letters": 2}
    lines = [json.loads(line) for line in Path("out.jsonl").read_text().splitlines()]
    assert {one["id"]: one["value"] for one in lines} == {
        letters[0].id: '{"id": 1}',
        letters[1].id: {"base64": "/w=="},
    }
    assert run("export", "out.parquet", *HERE, "--stage", "price").exit_code == 0
    assert pq.read_table("out.parquet")["id"].to_pylist() == [letters[1].id]
    assert "1 letter" in run("ls", "--path", "out.parquet").stdout
    for out, sentence in (("out.jsonl", "is already there"), ("no/out.jsonl", "is not there")):
        refused = run("export", out, *HERE)
        assert (refused.exit_code, sentence in refused.stderr) == (1, True)
    assert run("export", "out.csv", *HERE).exit_code == 2
    failed = run("export", "more.parquet", *HERE, "--where", "nope")
    assert (failed.exit_code, failed.stderr.startswith("error: ")) == (1, True)
    assert sorted(one.name for one in Path().iterdir()) == [
        "dead-letters",
        "out.jsonl",
        "out.parquet",
    ]


def test_resolve(run: Run) -> None:
    """What is marked is hidden from `ls`, unless it is asked for; `show` says why."""
    letters = [_letter(at, fingerprint=f"f{at}") for at in (1, 2)]
    done = run("resolve", "f1", *HERE, "--reason", "fixed", letters=letters)
    assert done.stdout == "Marked 1 letter as resolved.\n"
    assert "1 letter in 1 group" in run("ls", *HERE).stdout
    assert "2 letters in 2 groups" in run("ls", *HERE, "--all").stdout
    assert "resolved         fixed" in run("show", letters[0].id, *HERE).stdout
    told = run("resolve", letters[1].id, *HERE, "--reason", "gone", "--json").stdout
    assert json.loads(told) == {"ok": True, "resolved": 1}
    assert run("ls", *HERE).stdout == "No letters.\n"
    for arguments in ((), ("f1", "--reason", " ")):
        assert run("resolve", *HERE, *arguments).exit_code == 2
    assert run("resolve", *HERE, "--reason", "no selection").exit_code == 2
    assert "0 letters" in run("resolve", *HERE, "--reason", "x", "--everything").stdout


def test_what_could_be_either(run: Run) -> None:
    """What begins an id and a fingerprint is refused; a whole fingerprint is meant as one."""
    one = replace(_letter(1), id="ab" + "0" * 30)
    letters = [one, _letter(2, fingerprint="abc"), _letter(3, fingerprint="abcd")]
    both = run("resolve", "ab", "--reason", "x", *HERE, letters=letters)
    assert (both.exit_code, "an id and a fingerprint" in both.stderr) == (1, True)
    done = run("resolve", "abc", "--reason", "x", *HERE)
    assert "Marked 1 letter" in done.stdout
    assert "abcd" in run("ls", *HERE).stdout


@pytest.mark.parametrize("option", ["--fingerprint", "--stage"])
def test_an_option_that_is_empty(run: Run, option: str) -> None:
    """A variable of the shell that is not set selects nothing, and not everything."""
    done = run("resolve", option, "", "--reason", "x", *HERE, letters=[_letter(1)])
    assert done.exit_code == 2
    assert "is empty" in done.stderr


def test_compact(run: Run) -> None:
    """Many files become one; only whole folders are taken."""
    for at in range(3):
        run("ls", *HERE, letters=[_letter(at), _letter(9)])
    done = run("compact", *HERE)
    assert done.stdout == "path: 3 files are 1 now, 2 second copies left out.\n"
    assert json.loads(run("compact", *HERE, "--json").stdout)["path"]["before"] == 1
    assert run("compact", *HERE, "--stage", "decode").exit_code == 2
    assert run("compact", "--path", "nope").exit_code == 1


def test_what_is_left_out(run: Run) -> None:
    """A corrupt file is named on stderr, and in JSON; the rest is told."""
    run("ls", *HERE, letters=[_letter(1)])
    Path("dead-letters/half.parquet").write_bytes(b"PAR1")
    shown = run("ls", *HERE)
    assert shown.exit_code == 0
    assert "1 letter in 1 group" in shown.stdout
    assert "half.parquet" in shown.stderr
    (skipped,) = json.loads(run("stats", *HERE, "--json").stdout)["skipped"]
    assert Path(skipped["place"]).name == "half.parquet"


@pytest.mark.parametrize(
    ("arguments", "code", "sentence"),
    [
        (["ls"], 2, "say where the letters are"),
        (["ls", *HERE, "--topic", "t"], 2, "say where the letters are"),
        (["ls", "--topic", "t"], 2, "go together"),
        (["ls", "--topic", "a b", "--bootstrap-servers", "x"], 1, "is no name for a Kafka topic"),
        (["ls", "--path", "nope"], 1, "There is nothing at"),
        (["ls", "--path", "nope://x"], 1, "No filesystem"),
        (["ls", "--config", "nope.yaml"], 1, "cannot be read"),
        (["ls", "--path", ".", "--since", "tomorrow"], 2, "is neither a time"),
        (["ls", "--path", ".", "--where", "1 +"], 1, "error"),
        (["sql", "selec", "--path", "."], 1, "syntax error"),
        (["redrive", *HERE], 2, "say which letters"),
        (["redrive", "--path", ".", "--everything"], 2, "say where to"),
        (["redrive", "--path", ".", "--everything", "--to", "t"], 2, "say where that is"),
        (["redrive", "--path", ".", "--everything", "--through", "nope"], 2, "module:name"),
        (["redrives", "--path", "."], 2, "say where the app's state is"),
        (["redrives", "x", "--path", ".", "--state", "s"], 1, "is no redrive of this state"),
        (["redrives", "--path", ".", "--state", "s", "--abandon"], 2, "name it"),
        (["redrives", "--path", ".", "--state", "s", "--checkpoint", "x"], 1, "is committed at x"),
    ],
)
def test_mistakes(run: Run, arguments: list[str], code: int, sentence: str) -> None:
    """A mistake is a sentence and an exit code, never a traceback."""
    done = run(*arguments)
    assert done.exit_code == code
    assert sentence in " ".join(done.stderr.replace("│", "").split())
    assert isinstance(done.exception, SystemExit)


def test_help_has_examples(run: Run) -> None:
    """Each command's help shows how it is called."""
    for command in (
        "ls",
        "show",
        "stats",
        "sql",
        "export",
        "resolve",
        "compact",
        "redrive",
        "redrives",
    ):
        assert f"sparkguard dlq {command}" in run(command, "--help").stdout
