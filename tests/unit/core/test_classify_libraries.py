"""The exceptions of libraries: the installed ones for real, the others by name."""

import http.client
import urllib.error
from email.message import Message

import pytest
import requests
import urllib3
from confluent_kafka import KafkaError, KafkaException
from confluent_kafka.error import ProduceError, ValueDeserializationError
from confluent_kafka.serialization import SerializationError

from sparkguard.core.classify import classify
from sparkguard.core.failure import Cause
from sparkguard.core.fingerprint import type_names
from sparkguard.core.known import KAFKA
from tests.unit.core.named import Response, named

T, P, PROGRAMMING = Cause.TRANSIENT, Cause.POISON, Cause.PROGRAMMING
CODES = [name for name in vars(KafkaError) if name.strip("_").replace("_", "").isupper()]


REGISTRY = "confluent_kafka.schema_registry.error.SchemaRegistryError"


def registry(status: int) -> Exception:
    """An answer of the schema registry; its client needs more than is installed here."""
    return named(REGISTRY, http_status_code=status)("x")


def kafka(name: str, **flags: bool) -> KafkaException:
    """The exception of a Kafka error code."""
    return KafkaException(KafkaError(getattr(KafkaError, name), name, **flags))


@pytest.mark.parametrize(
    ("code", "cause"),
    [
        *((code, T) for code in ("_TIMED_OUT", "_TRANSPORT", "_ALL_BROKERS_DOWN", "_RESOLVE")),
        *((code, T) for code in ("_MSG_TIMED_OUT", "_QUEUE_FULL", "NOT_ENOUGH_REPLICAS")),
        *((code, T) for code in ("_AUTHENTICATION", "SASL_AUTHENTICATION_FAILED", "_SSL")),
        *((code, T) for code in ("TOPIC_AUTHORIZATION_FAILED", "GROUP_AUTHORIZATION_FAILED")),
        *((code, T) for code in ("CLUSTER_AUTHORIZATION_FAILED", "SECURITY_DISABLED")),
        *((code, T) for code in ("UNKNOWN_TOPIC_OR_PART", "_UNKNOWN_TOPIC", "_FENCED")),
        *((code, P) for code in ("MSG_SIZE_TOO_LARGE", "INVALID_RECORD", "INVALID_MSG")),
        *((code, P) for code in ("_VALUE_SERIALIZATION", "TOPIC_EXCEPTION")),
        *((code, PROGRAMMING) for code in ("_INVALID_ARG", "INVALID_CONFIG", "_STATE")),
    ],
)
def test_kafka_codes(code: str, cause: Cause) -> None:
    """P9: authentication, authorisation and a missing topic are outages; the message is poison."""
    assert classify(kafka(code)) is cause


def test_fatal_kafka_client() -> None:
    """A client that is fatally broken is replaced by a restart, whatever the code says."""
    assert classify(kafka("INVALID_RECORD", fatal=True)) is T
    assert classify(kafka("INVALID_RECORD", retriable=True)) is P


def test_kafka_codes_exist() -> None:
    """A misspelt code in the table would never match."""
    assert set(KAFKA) <= set(CODES)


def test_every_auth_code_is_an_outage() -> None:
    """P9: whatever Kafka says about who may do what is never a poison record."""
    for code in CODES:
        if any(word in code for word in ("AUTH", "SASL", "CREDENTIAL", "TOKEN", "SSL")):
            assert classify(kafka(code)) is T, code


def test_kafka_error_without_a_code() -> None:
    """A KafkaException that carries text only is still about the cluster."""
    assert classify(KafkaException("broken")) is T
    assert classify(KafkaException()) is T


def test_kafka_names() -> None:
    """confluent-kafka's C classes go by the module that users import them from."""
    assert type_names(KafkaException)[0] == "confluent_kafka.KafkaException"
    assert classify(kafka("_TIMED_OUT"), [("confluent_kafka.KafkaException", P)]) is P
    assert classify(kafka("_TIMED_OUT"), [("cimpl.KafkaException", P)]) is P


def test_schema_registry() -> None:
    """P9: an unreachable or locked registry is an outage, also inside a (de)serialisation error."""
    for status in (401, 403, 429, 500, 503, -1):
        outage = registry(status)
        assert classify(outage) is T
        assert classify(ValueDeserializationError(exception=outage)) is T
    missing = registry(404)
    assert classify(missing) is P
    assert classify(ValueDeserializationError(exception=missing)) is P
    assert classify(ValueDeserializationError(exception=ValueError("x"))) is P
    assert classify(ValueDeserializationError(exception=None)) is P
    assert classify(ProduceError(KafkaError(KafkaError._TIMED_OUT), exception=None)) is T
    unreadable = SerializationError("x")
    assert classify(unreadable) is P
    unreadable.__cause__ = registry(503)
    assert classify(unreadable) is T


def requests_error(status: int) -> requests.HTTPError:
    """What `raise_for_status` raises."""
    response = requests.Response()
    response.status_code = status
    try:
        response.raise_for_status()
    except requests.HTTPError as error:
        return error
    pytest.fail("nothing was raised")


def test_requests() -> None:
    """P9: timeouts, connections, 5xx, 429 and rights are outages; other 4xx are the record's."""
    for outage in ("ConnectionError", "ConnectTimeout", "ReadTimeout", "ChunkedEncodingError"):
        assert classify(getattr(requests.exceptions, outage)()) is T
    for outage in ("SSLError", "ProxyError", "RetryError"):
        assert classify(getattr(requests.exceptions, outage)()) is T
    for poison in ("InvalidURL", "MissingSchema", "InvalidHeader", "InvalidJSONError"):
        assert classify(getattr(requests.exceptions, poison)()) is P
    assert [classify(requests_error(status)) for status in (401, 403, 408, 429, 503)] == [T] * 5
    assert [classify(requests_error(status)) for status in (400, 404, 409)] == [P] * 3
    assert classify(requests.HTTPError()) is P


def test_real_refused_connection() -> None:
    """P9: nobody listens there: an outage, through requests, urllib3 and urllib alike."""
    url = "http://127.0.0.1:9/"
    with pytest.raises(requests.ConnectionError) as met:
        requests.get(url, timeout=5)
    assert classify(met.value) is T
    with pytest.raises(urllib3.exceptions.MaxRetryError) as limit:
        urllib3.PoolManager(retries=0).request("GET", url)
    assert classify(limit.value) is T
    assert classify(urllib.error.URLError(ConnectionRefusedError(111, "x"))) is T


def test_urllib3() -> None:
    """A retry limit is judged by its reason."""
    pool = urllib3.HTTPConnectionPool("localhost")
    outage = urllib3.exceptions.ResponseError("too many 503 error responses")
    nowhere = urllib3.exceptions.LocationParseError("x")
    assert classify(urllib3.exceptions.MaxRetryError(pool, "/", outage)) is T
    assert classify(urllib3.exceptions.MaxRetryError(pool, "/", None)) is T
    assert classify(urllib3.exceptions.ReadTimeoutError(pool, "/", "x")) is T
    assert classify(nowhere) is P


def test_urllib() -> None:
    """HTTPError by its status, URLError by its reason."""
    for status, cause in ((503, T), (403, T), (404, P)):
        with urllib.error.HTTPError("http://x", status, "x", Message(), None) as error:
            assert classify(error) is cause
    assert classify(urllib.error.URLError("unknown url type: x")) is P
    assert classify(http.client.RemoteDisconnected("x")) is T
    assert classify(http.client.IncompleteRead(b"")) is T


def test_httpx() -> None:
    """By name: transport errors are outages, but not those that the request itself caused."""
    transport = named("httpx.TransportError")
    assert classify(named("httpx.ReadTimeout", named("httpx.TimeoutException", transport))()) is T
    assert classify(named("httpx.UnsupportedProtocol", transport)()) is P
    assert classify(named("httpx.LocalProtocolError", transport)()) is P
    status = named("httpx.HTTPStatusError", response=Response(502))
    assert classify(status()) is T
    assert classify(named("httpx.HTTPStatusError", response=Response(422))()) is P
    assert classify(named("httpcore.ConnectError", named("httpcore.NetworkError"))()) is T


def test_psycopg() -> None:
    """By SQLSTATE, and by class where the server never answered."""
    for library in ("psycopg", "psycopg2"):
        attribute = {"psycopg": "sqlstate", "psycopg2": "pgcode"}[library]
        operational = named(f"{library}.OperationalError", **{attribute: None})
        integrity = named(f"{library}.IntegrityError", **{attribute: None})
        programming = named(f"{library}.ProgrammingError", **{attribute: None})
        assert classify(operational()) is T
        assert classify(named(f"{library}.errors.UniqueViolation", integrity)()) is P
        assert classify(programming()) is PROGRAMMING
        denied = named(f"{library}.errors.InsufficientPrivilege", programming)
        setattr(denied, attribute, "42501")
        assert classify(denied()) is T


def test_sqlalchemy() -> None:
    """By the driver's own exception, by class where there is none."""
    statement = named("sqlalchemy.exc.StatementError", orig=None)
    database = named("sqlalchemy.exc.DBAPIError", statement)
    operational = named("sqlalchemy.exc.OperationalError", database)
    integrity = named("sqlalchemy.exc.IntegrityError", database)
    typo = named("sqlalchemy.exc.OperationalError", database)
    typo.orig = named("asyncpg.E", sqlstate="42P01")()  # type: ignore[attr-defined]
    assert classify(operational()) is T
    assert classify(integrity()) is P
    assert classify(typo()) is PROGRAMMING
    assert classify(named("sqlalchemy.exc.TimeoutError")()) is T


@pytest.mark.parametrize(
    ("code", "status", "cause"),
    [
        ("ThrottlingException", 400, T),
        ("SlowDown", 503, T),
        ("AccessDenied", 403, T),
        ("ExpiredToken", 400, T),
        ("InternalError", 500, T),
        ("Unheard", 500, T),
        ("Unheard", 403, T),
        ("503", 503, T),
        ("404", 404, P),
        ("NoSuchKey", 404, P),
        ("ConditionalCheckFailedException", 400, P),
        ("Unheard", 400, P),
    ],
)
def test_botocore_codes(code: str, status: int, cause: Cause) -> None:
    """P9: throttling, rights and tokens are outages, by code and else by HTTP status."""
    answer = {"Error": {"Code": code}, "ResponseMetadata": {"HTTPStatusCode": status}}
    error = named("botocore.exceptions.ClientError", response=answer)
    assert classify(error()) is cause
    assert classify(named("botocore.errorfactory.Odd", error)()) is cause


def test_botocore_without_an_answer() -> None:
    """P9: no connection and no credentials are outages."""
    for name in ("ConnectionError", "HTTPClientError", "NoCredentialsError", "SSOError"):
        assert classify(named(f"botocore.exceptions.{name}")()) is T
    assert classify(named("botocore.exceptions.ClientError", response={})()) is P
    upload = named("boto3.exceptions.S3UploadFailedError")()
    denied = named("botocore.exceptions.ClientError", response={"Error": {"Code": "AccessDenied"}})
    upload.__context__ = denied()
    assert classify(upload) is T
