"""Shown: letters as text for people and as JSON, with nothing in it that a terminal would obey."""

from __future__ import annotations

import base64
import json
import math
import re
from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime
from enum import StrEnum
from typing import Any, Final

MASK: Final = "***"
SHOWN_BYTES: Final = 4_000
"""More of a payload is not shown, unless asked for."""

_WIDTH: Final = 10_000
"""Of a table that is written to a file or a pipe: nothing in it is cut."""

_BARS: Final = "▁▂▃▄▅▆▇█"
# Control characters but line break and tab, and the marks that turn the direction of text.
_UNSAFE = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069]")
_FRAME = re.compile(r'\s*(File "|at |Traceback \(|\.\.\. \d+ more|… \d+ frames)')


class Form(StrEnum):
    """How bytes are shown."""

    AUTO = "auto"
    JSON = "json"
    TEXT = "text"
    HEX = "hex"


def safe(text: object) -> str:
    r"""The text with every character spelled out that a terminal would obey: ``\x1b``."""
    said = str(text).encode("utf-8", "backslashreplace").decode()
    return _UNSAFE.sub(lambda found: ascii(found[0])[1:-1], said)


def payload(value: bytes | None, form: Form = Form.AUTO, *, redact: bool = False) -> str:
    """Bytes for a person: as JSON where they are JSON, else as text, else in hexadecimal."""
    if value is None:
        return "null"
    if form in {Form.AUTO, Form.JSON}:
        try:
            found = json.loads(value)
        except (ValueError, RecursionError):
            pass
        else:
            return safe(
                json.dumps(masked(found) if redact else found, indent=2, ensure_ascii=False)
            )
    if redact:
        return f"{MASK} ({len(value):,} bytes)"
    if form is Form.HEX:
        return _hex(value)
    try:
        return safe(value.decode())
    except UnicodeDecodeError:
        return _hex(value) if form is Form.AUTO else safe(value.decode("utf-8", "backslashreplace"))


def masked(found: Any) -> Any:
    """The same shape with every value hidden; names stay."""
    match found:
        case dict():
            return {name: masked(value) for name, value in found.items()}
        case list():
            return [masked(value) for value in found]
        case _:
            return found if found is None else MASK


def plain(value: Any) -> Any:
    """A value for JSON: bytes as text where they are UTF-8, else ``{"base64": …}``.

    NaN and infinities, which JSON has not, become text.
    """
    match value:
        case bytes():
            return _text(value)
        case datetime():
            return value.isoformat()
        case dict():
            return {str(name): plain(one) for name, one in value.items()}
        case list() | tuple():
            return [plain(one) for one in value]
        case float() if not math.isfinite(value):
            return str(value)
        case _:
            return value


def _text(value: bytes) -> str | dict[str, str]:
    try:
        return value.decode()
    except UnicodeDecodeError:
        return {"base64": base64.b64encode(value).decode()}


def redacted(row: Mapping[str, Any]) -> dict[str, Any]:
    """The row without what the record or its exception said: facts, names and frames stay."""
    hidden = {
        name: None if row.get(name) is None else payload(row[name], redact=True).encode()
        for name in ("key", "value")
    }
    headers = [{**one, "value": MASK.encode()} for one in row.get("headers") or ()]
    frames = "\n".join(
        line if _FRAME.match(line) else MASK for line in (row.get("trace") or "").splitlines()
    )
    said = {name: MASK if row.get(name) else row.get(name) for name in ("message", "columns")}
    return {**row, **hidden, **said, "headers": headers, "trace": frames}


def sparkline(counts: Sequence[int]) -> str:
    """Counts as a row of bars; a part without any is blank."""
    top = max(counts, default=0)
    return "".join(
        _BARS[(count * len(_BARS) - 1) // top] if count else " " for count in counts
    ).ljust(len(counts))


def clock(when: datetime | None) -> str:
    """A time in UTC to the second, for tables."""
    return "-" if when is None else f"{when:%Y-%m-%d %H:%M:%S}"


def listed(words: Iterable[str]) -> str:
    """Words by comma, or a dash."""
    return safe(", ".join(sorted(words))) or "-"


def number(count: int, word: str) -> str:
    """So many of something, in the plural where it is not one."""
    return f"{count:,} {word}{'' if count == 1 else 's'}"


def say_table(heads: tuple[str, ...], rows: Iterable[tuple[str, ...]]) -> None:
    """Print a table as wide as the terminal; what was made safe is not read as markup."""
    from rich.console import Console
    from rich.table import Column, Table
    from rich.text import Text

    console = Console(highlight=False)
    if not console.is_terminal:
        console.width = _WIDTH
    made = Table(*(Column(Text(head)) for head in heads), box=None, pad_edge=False)
    for row in rows:
        made.add_row(*map(Text, row))
    console.print(made)


def _hex(value: bytes) -> str:
    lines = []
    for at in range(0, len(value), 16):
        row = value[at : at + 16]
        said = "".join(chr(byte) if 32 <= byte < 127 else "." for byte in row)  # noqa: PLR2004 - ASCII
        lines.append(f"{at:08x}  {row.hex(' '):<47}  {said}")
    return "\n".join(lines) or "(empty)"
