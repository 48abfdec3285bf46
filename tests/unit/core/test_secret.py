import pytest

from sparkguard.core.secret import is_secret, masked, scrub


@pytest.mark.parametrize(
    "key",
    [
        "sasl.password",
        "ssl.key.password",
        "ssl.key.pem",
        "ssl.keystore.password",
        "sasl.jaas.config",
        "sasl.oauthbearer.client.secret",
        "sasl.oauthbearer.config",
        "basic.auth.user.info",
        "ACCESS_TOKEN",
        "api_key",
    ],
)
def test_is_secret(key: str) -> None:
    """P18: whatever can open a door is masked."""
    assert is_secret(key)


@pytest.mark.parametrize("key", ["bootstrap.servers", "linger.ms", "sasl.username", "acks"])
def test_is_no_secret(key: str) -> None:
    """What helps to find an error stays readable."""
    assert not is_secret(key)


def test_masked_and_scrubbed() -> None:
    """P18: neither a setting nor an error message shows the value."""
    settings = {"sasl.password": "hunter2", "linger.ms": 5, "ssl.key.password": ""}
    assert masked(settings)["sasl.password"] == "***"
    assert masked(settings)["linger.ms"] == 5
    assert scrub("wrong password hunter2 given", settings) == "wrong password *** given"
