"""Secrets among a client's settings: which keys hold one, and how they are shown."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any, Final

MASK: Final = "***"
"""Stands where a secret's value would."""

_SECRET = re.compile(
    r"password|secret|token|jaas|credential|user\.info|key\.pem|api[._-]?key"
    r"|^sasl\.oauthbearer\.|^ssl\.key\.|^ssl_key",
    re.IGNORECASE,
)


def is_secret(key: str) -> bool:
    """Whether the setting of this name holds a secret; rather one too many than one too few."""
    return bool(_SECRET.search(key))


def masked(settings: Mapping[str, Any]) -> dict[str, Any]:
    """The settings as they may be shown."""
    return {key: MASK if is_secret(key) else value for key, value in settings.items()}


def scrub(text: str, settings: Mapping[str, Any]) -> str:
    """A client's message without the secrets among its settings."""
    secrets = [str(value) for key, value in settings.items() if value and is_secret(key)]
    for secret in sorted(secrets, key=len, reverse=True):
        text = text.replace(secret, MASK)
    return text
