"""Writes the reference pages that come from the code; ``--check`` only says which are stale.

    python docs/generate.py [--check]

A page is a function without arguments that returns Markdown; to add one, add it to `PAGES`.
"""

from __future__ import annotations

import ast
import sys
from collections.abc import Callable, Iterable, Mapping
from itertools import pairwise
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

from docs.generate_audit import audit_page, status_page  # noqa: E402 - the path comes first
from docs.generate_dlq import dlq_page  # noqa: E402 - the path comes first
from docs.generate_settings import settings_page  # noqa: E402 - the path comes first
from sparkguard.core import classify as classifier  # noqa: E402
from sparkguard.core import known  # noqa: E402
from sparkguard.core.failure import Cause  # noqa: E402

NOTE = "<!-- Written by docs/generate.py from {source}. Change it there. -->"
ORDER = (Cause.TRANSIENT, Cause.POISON, Cause.PROGRAMMING, Cause.FATAL)
MEANING = {
    Cause.POISON: "This record will fail again.",
    Cause.TRANSIENT: "An outage or a timeout: it may pass.",
    Cause.PROGRAMMING: "The code or the set-up is wrong, whatever the record.",
    Cause.FATAL: "The process is in trouble: out of memory, asked to exit, killed.",
}
HANDLED = {
    Cause.POISON: "the stage's handler, or `by_exception`",
    Cause.TRANSIENT: "retries within the task timeout, then `on_transient` (default `restart`)",
    Cause.PROGRAMMING: "`on_programming` (default `fail`)",
    Cause.FATAL: "`on_fatal` (default `fail`)",
}
CODES: tuple[tuple[str, Mapping[str, Cause], str, str], ...] = (
    (
        "Kafka error codes",
        known.KAFKA,
        "",
        """The name of a `KafkaError`. Every other code is transient: a timeout, a lost broker,
an unknown topic, a failed authentication, a missing right, a fenced client.""",
    ),
    (
        "SQLSTATE",
        known.SQLSTATE,
        "",
        """Of psycopg and psycopg2 (also inside sqlalchemy), of other drivers that have a
`sqlstate`, and of Spark. Two characters are a whole class.""",
    ),
    ("sqlite3", known.SQLITE, "SQLITE_", "The first word of the error's name."),
    (
        "botocore ClientError",
        known.AWS,
        "",
        "By code; a code that is not listed is judged by its HTTP status.",
    ),
    (
        "Spark error conditions",
        known.CONDITIONS,
        "",
        "The innermost one counts; a condition that is not listed is judged by its SQLSTATE.",
    ),
    (
        "Java exceptions",
        known.JAVA,
        "",
        "Where a Java exception carries neither condition nor SQLSTATE.",
    ),
    ("Spark's phrases", known.PHRASES, "", "Where Spark writes no condition either."),
)
CAUSES = """{note}

# Causes

The cause of a failure says what kind of thing it is; the category says where it was.

| cause | meaning | who decides |
| --- | --- | --- |
{causes}

## How an exception is judged

{order}

{choices}

Every exception that is no `Exception` is fatal. Of a group (`ExceptionGroup`) the worst member
counts: fatal, programming, poison, transient.

Say otherwise in the settings; it wins over everything below, subclasses included:

```yaml
stages:
  price:
    classify: {{transient: [orders.PriceServiceDown, FileNotFoundError]}}
```

## Exception classes

Subclasses are included; the most specific class counts.

{classes}

An `AttributeError` of a module (`json.laods`) and a `SyntaxError` of a file are programming;
another `AttributeError` and the `SyntaxError` of text that was evaluated are poison. A `SinkError`
that says that trying again is no use is programming.

## errno

Of an `OSError` that is none of the classes above.

{errno}

## HTTP status

Of requests, httpx, urllib, the schema registry's client, and of every exception that has a
`response.status_code`.

{statuses}

{sections}"""


def causes() -> str:
    """The page about causes: what they are, the order of judging, and the whole table."""
    return CAUSES.format(
        note=NOTE.format(source="sparkguard/core/known.py and classify.py"),
        causes=_lines(f"| `{cause}` | {MEANING[cause]} | {HANDLED[cause]} |" for cause in ORDER),
        order=_tail(classifier.__doc__),
        choices=_tail(known.__doc__).partition("\n\n")[2],
        classes=_lines(_classes()),
        errno=_lines(_codes(known.ERRNO)),
        statuses=_lines(_statuses()),
        sections=_lines(_sections()),
    )


def events() -> str:
    """The page about log events: each constant of events.py with its sentence."""
    source = (ROOT / "sparkguard" / "events.py").read_text(encoding="utf-8")
    body = ast.parse(source).body
    rows = []
    for node, said in pairwise(body):
        if isinstance(node, ast.AnnAssign) and isinstance(node.value, ast.Constant):
            text = ast.literal_eval(said.value) if isinstance(said, ast.Expr) else ""
            what, _, names = " ".join(text.split()).rstrip(".").rpartition(": ")
            listed = ", ".join(f"`{name.strip()}`" for name in names.split(","))
            rows.append(f"| `{node.value.value!s}` | {what} | {listed} |")
    return "\n".join(
        [
            NOTE.format(source="sparkguard/events.py"),
            "",
            "# Log events",
            "",
            "Every event goes to the stdlib logger `sparkguard`, so it follows the application's",
            "logging. Payloads are never logged.",
            "",
            "| event | when | fields |",
            "| --- | --- | --- |",
            *rows,
            "",
        ]
    )


PAGES: dict[str, Callable[[], str]] = {
    "audit.md": audit_page,
    "causes.md": causes,
    "dlq.md": dlq_page,
    "events.md": events,
    "settings.md": settings_page,
    "status.md": status_page,
}


def stale() -> list[str]:
    """The names of the pages that are not what the code says."""
    return [name for name, page in PAGES.items() if _read(name) != page()]


def main() -> int:
    """Writes the pages, or with ``--check`` lists the stale ones and fails if there are any."""
    old = stale()
    if "--check" in sys.argv[1:]:
        for name in old:
            print(f"docs/{name} is stale: run python docs/generate.py.", file=sys.stderr)
        return 1 if old else 0
    for name in old:
        (ROOT / "docs" / name).write_text(PAGES[name](), encoding="utf-8")
        print(f"docs/{name}")
    return 0


def _read(name: str) -> str | None:
    path = ROOT / "docs" / name
    return path.read_text(encoding="utf-8") if path.exists() else None


def _lines(lines: Iterable[str]) -> str:
    return "\n".join(lines)


def _tail(docstring: str | None) -> str:
    return (docstring or "").partition("\n\n")[2].strip().replace("``", "`")


def _classes() -> Iterable[str]:
    yield "| library | cause | classes |"
    yield "| --- | --- | --- |"
    for library, table in known.CLASSES.items():
        for cause in ORDER:
            if cause in table:
                yield f"| {library} | `{cause}` | {_names(table[cause].split())} |"


def _codes(table: Mapping[str, Cause], prefix: str = "") -> Iterable[str]:
    yield "| cause | codes |"
    yield "| --- | --- |"
    for cause in ORDER:
        names = [f"{prefix}{name}" for name, of in table.items() if of is cause]
        if names:
            yield f"| `{cause}` | {_names(names)} |"


def _statuses() -> Iterable[str]:
    yield "| cause | status |"
    yield "| --- | --- |"
    for cause in (Cause.TRANSIENT, Cause.POISON):
        listed = [str(status) for status in known.HTTP if known.HTTP[status] is cause]
        rest = {Cause.TRANSIENT: "every 5xx", Cause.POISON: "every other 4xx"}[cause]
        yield f"| `{cause}` | {', '.join([*listed, rest])} |"


def _sections() -> Iterable[str]:
    for title, table, prefix, about in CODES:
        yield from (f"## {title}", "", about, "", *_codes(table, prefix), "")


def _names(names: Iterable[str]) -> str:
    return ", ".join(f"`{name}`" for name in sorted(names))


if __name__ == "__main__":
    sys.exit(main())
