"""Text that can be stored: Python's strings may hold what UTF-8 cannot."""

from __future__ import annotations


def utf8(text: str) -> str:
    r"""The text, a lone surrogate spelled as ``\udc80``; never raises.

    Exceptions that quote undecodable bytes hold such surrogates, and Arrow, Kafka and JSON refuse
    them (librdkafka's binding even crashes).
    """
    if text.isascii():
        return text
    return text.encode("utf-8", "backslashreplace").decode("utf-8")
