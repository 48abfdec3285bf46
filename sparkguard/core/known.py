"""Known: the classifier's table of exceptions, codes and states, as data.

Names are qualified class names, builtins without their module; a name covers its
subclasses. Some subclasses are listed all the same: where only text is left of an
exception, its name is all there is. The page ``docs/causes.md`` is generated from here.

Three choices run through all of it:

* Who may not come in, or finds the door locked, has met an outage (P9): what is
  wrong are credentials or rights, never the record.
* An error of a client that is not about the message is about the cluster.
* What is missing (a file, a bucket, a subject) is taken for the record's fault: a
  record that names it would otherwise stop the query for ever. Where it is not the
  record's fault every record fails, which the stage's budget notices, and no letter is lost.
"""

from __future__ import annotations

from typing import Final

from sparkguard.core.failure import Cause

TRANSIENT, POISON = Cause.TRANSIENT, Cause.POISON
PROGRAMMING, FATAL = Cause.PROGRAMMING, Cause.FATAL

_Table = dict[Cause, str]


def _flat(*tables: _Table) -> dict[str, Cause]:
    return {
        name: cause for table in tables for cause, names in table.items() for name in names.split()
    }


CLASSES: Final[dict[str, _Table]] = {
    "Python": {
        # BufferError is what confluent-kafka's produce() raises when its queue is full.
        TRANSIENT: """
            ConnectionError TimeoutError BlockingIOError InterruptedError PermissionError
            BufferError socket.gaierror socket.herror ssl.SSLError http.client.IncompleteRead
            http.client.BadStatusLine urllib.error.ContentTooShortError
            subprocess.TimeoutExpired multiprocessing.context.TimeoutError
            """,
        PROGRAMMING: "ImportError NameError NotImplementedError",
        # XML parsers raise a subclass of SyntaxError for the record's own text.
        POISON: """
            UnicodeError FileNotFoundError IsADirectoryError NotADirectoryError FileExistsError
            RecursionError StopIteration StopAsyncIteration AssertionError
            json.decoder.JSONDecodeError xml.etree.ElementTree.ParseError lxml.etree.LxmlSyntaxError
            """,
        FATAL: "MemoryError SystemExit KeyboardInterrupt GeneratorExit",
    },
    "msgspec, pydantic": {
        POISON: "msgspec.MsgspecError pydantic_core._pydantic_core.ValidationError",
    },
    "requests": {
        TRANSIENT: """
            requests.exceptions.ConnectionError requests.exceptions.Timeout
            requests.exceptions.ChunkedEncodingError requests.exceptions.RetryError
            requests.exceptions.ConnectTimeout requests.exceptions.ReadTimeout
            requests.exceptions.ProxyError requests.exceptions.SSLError
            """,
        POISON: """
            requests.exceptions.InvalidURL requests.exceptions.InvalidHeader
            requests.exceptions.InvalidJSONError
            """,
    },
    "httpx, httpcore": {
        TRANSIENT: """
            httpx.TransportError httpx.ConnectError httpx.ReadError httpx.WriteError
            httpx.CloseError httpx.ConnectTimeout httpx.ReadTimeout httpx.WriteTimeout
            httpx.PoolTimeout httpx.RemoteProtocolError httpx.ProxyError
            httpcore.TimeoutException httpcore.NetworkError
            httpcore.RemoteProtocolError httpcore.ProxyError httpcore.ConnectionNotAvailable
            """,
        POISON: "httpx.InvalidURL httpx.UnsupportedProtocol httpx.LocalProtocolError",
    },
    "urllib3": {
        TRANSIENT: """
            urllib3.exceptions.TimeoutError urllib3.exceptions.MaxRetryError
            urllib3.exceptions.ReadTimeoutError urllib3.exceptions.NewConnectionError
            urllib3.exceptions.ProtocolError
            urllib3.exceptions.IncompleteRead urllib3.exceptions.ProxyError
            urllib3.exceptions.SSLError urllib3.exceptions.PoolError
            urllib3.exceptions.ResponseError
            """,
        POISON: "urllib3.exceptions.LocationValueError",
    },
    "confluent-kafka": {
        # By code where there is one, see the table of codes.
        TRANSIENT: """
            confluent_kafka.KafkaException
            confluent_kafka.schema_registry.error.SchemaRegistryError
            confluent_kafka.schema_registry.error.OAuthTokenError
            """,
        POISON: "confluent_kafka.serialization.SerializationError",
    },
    "sqlite3": {PROGRAMMING: "sqlite3.ProgrammingError sqlite3.NotSupportedError"},
    "psycopg, psycopg2": {
        # By SQLSTATE first: OperationalError has none when there is no connection.
        TRANSIENT: """
            psycopg.OperationalError psycopg2.OperationalError psycopg2.InterfaceError
            """,
        POISON: """
            psycopg.DataError psycopg.IntegrityError psycopg2.DataError psycopg2.IntegrityError
            """,
        PROGRAMMING: """
            psycopg.ProgrammingError psycopg.NotSupportedError
            psycopg2.ProgrammingError psycopg2.NotSupportedError
            """,
    },
    "sqlalchemy": {
        # By the driver's own exception (`orig`) first.
        TRANSIENT: """
            sqlalchemy.exc.OperationalError sqlalchemy.exc.InterfaceError
            sqlalchemy.exc.DisconnectionError sqlalchemy.exc.TimeoutError
            sqlalchemy.exc.PendingRollbackError
            """,
        POISON: "sqlalchemy.exc.DataError sqlalchemy.exc.IntegrityError",
        PROGRAMMING: """
            sqlalchemy.exc.ProgrammingError sqlalchemy.exc.NotSupportedError
            sqlalchemy.exc.ArgumentError sqlalchemy.exc.CompileError
            sqlalchemy.exc.NoSuchTableError
            """,
    },
    "boto3, botocore": {
        # ClientError by its code and status, see the table of codes.
        TRANSIENT: """
            botocore.exceptions.EndpointConnectionError botocore.exceptions.ConnectTimeoutError
            botocore.exceptions.ReadTimeoutError botocore.exceptions.ConnectionClosedError
            botocore.exceptions.ConnectionError botocore.exceptions.HTTPClientError
            botocore.exceptions.IncompleteReadError botocore.exceptions.NoCredentialsError
            botocore.exceptions.PartialCredentialsError
            botocore.exceptions.CredentialRetrievalError botocore.exceptions.NoAuthTokenError
            botocore.exceptions.TokenRetrievalError botocore.exceptions.SSOError
            botocore.exceptions.LoginError botocore.exceptions.MetadataRetrievalError
            """,
        PROGRAMMING: """
            botocore.exceptions.DataNotFoundError botocore.exceptions.NoRegionError
            """,
    },
    "pyspark": {
        # By condition and SQLSTATE first.
        PROGRAMMING: """
            pyspark.errors.exceptions.base.AnalysisException
            pyspark.errors.exceptions.base.UnsupportedOperationException
            pyspark.errors.exceptions.base.SessionNotSameException
            pyspark.errors.exceptions.base.PySparkAttributeError
            pyspark.errors.exceptions.base.PySparkPicklingError
            """,
        POISON: """
            pyspark.errors.exceptions.base.ArithmeticException
            pyspark.errors.exceptions.base.DateTimeException
            pyspark.errors.exceptions.base.NumberFormatException
            """,
    },
    "sparkguard": {
        # What hangs mostly waits for somebody who does not answer.
        TRANSIENT: """
            sparkguard.errors.SinkError sparkguard.errors.SourceError
            sparkguard.errors.RecordTimeoutError
            """,
        FATAL: "sparkguard.errors.WorkerCrashError",
        PROGRAMMING: """
            sparkguard.errors.ConfigError sparkguard.errors.StageError
            sparkguard.errors.StateError
            sparkguard.errors.PluginError sparkguard.errors.UnsupportedError
            sparkguard.executor.vectorised.ColumnsError
            sparkguard.core.partial.NamingError
            """,
    },
}
"""Exception classes by library."""

BY_CLASS: Final[dict[str, Cause]] = _flat(*CLASSES.values())

WRAPPERS: Final[dict[str, str]] = {
    "urllib.error.URLError": "reason",
    "urllib3.exceptions.MaxRetryError": "reason",
    "sqlalchemy.exc.StatementError": "orig",
    "boto3.exceptions.RetriesExceededError": "last_exception",
    # These two are raised while the real error is handled, but not from it.
    "boto3.exceptions.S3UploadFailedError": "__context__",
    "boto3.exceptions.S3TransferFailedError": "__context__",
    "confluent_kafka.error.ConsumeError": "exception",
    "confluent_kafka.error.ProduceError": "exception",
}
"""Classes that only carry another exception, and the attribute where it is."""

STATUS_OF: Final[dict[str, str]] = {
    "urllib.error.HTTPError": "code",
    "confluent_kafka.schema_registry.error.SchemaRegistryError": "http_status_code",
}
"""Classes whose HTTP status is an attribute; others have it at ``response.status_code``."""

ERRNO: Final[dict[str, Cause]] = _flat(
    {
        TRANSIENT: """
            EPERM EACCES EROFS EINTR EIO EAGAIN EWOULDBLOCK EBUSY EMFILE ENFILE ENOMEM ENOSPC EDQUOT
            ENOBUFS ENOLCK ESTALE EREMOTEIO EPIPE ESHUTDOWN ENOTCONN ECONNREFUSED ECONNRESET
            ECONNABORTED ETIMEDOUT ENETDOWN ENETUNREACH ENETRESET EHOSTDOWN EHOSTUNREACH
            EADDRINUSE EADDRNOTAVAIL EALREADY EINPROGRESS
            """,
        POISON: "ENOENT ENOTDIR EISDIR EEXIST ENAMETOOLONG EILSEQ",
    }
)
"""By the name of an OSError's errno: a full disk is an outage of the machine."""

HTTP: Final[dict[int, Cause]] = dict.fromkeys((401, 403, 407, 408, 425, 429), TRANSIENT)
"""HTTP statuses that differ from their class: 5xx is transient, other 4xx poison."""

KAFKA: Final[dict[str, Cause]] = _flat(
    {
        POISON: """
            MSG_SIZE_TOO_LARGE INVALID_MSG INVALID_MSG_SIZE INVALID_RECORD INVALID_TIMESTAMP
            RECORD_LIST_TOO_LARGE TOPIC_EXCEPTION _BAD_MSG _KEY_SERIALIZATION _VALUE_SERIALIZATION
            _KEY_DESERIALIZATION _VALUE_DESERIALIZATION
            """,
        PROGRAMMING: """
            INVALID_CONFIG INVALID_REQUIRED_ACKS UNSUPPORTED_VERSION UNSUPPORTED_FOR_MESSAGE_FORMAT
            _INVALID_ARG _INVALID_TYPE _STATE _CONFLICT _NOT_CONFIGURED _NOT_IMPLEMENTED
            _UNSUPPORTED_FEATURE
            """,
    }
)
"""By the name of a KafkaError's code; every other code is transient.

An unknown topic, a failed authentication, a missing right, a fenced or otherwise
fatally failed client: none is about the record, and a restart makes a new client.
"""

SQLSTATE: Final[dict[str, Cause]] = _flat(
    {
        # 25 has the failed transaction and the database that turned read-only; 28 is
        # authorisation; 55 a lock that is taken; 57 an operator's intervention.
        TRANSIENT: "08 25 28 40 53 55 57 58 42501",
        POISON: "21 22 23 44 54 P0001",
        PROGRAMMING: "07 0A 3D 3F 42 46 55019",
        FATAL: "82",
    }
)
"""By SQLSTATE, whole or its class (the first two characters), of databases and of Spark."""

SQLITE: Final[dict[str, Cause]] = _flat(
    {
        TRANSIENT: "BUSY LOCKED IOERR FULL CANTOPEN PROTOCOL NOMEM READONLY AUTH PERM",
        POISON: "CONSTRAINT MISMATCH TOOBIG",
        PROGRAMMING: "ERROR SCHEMA MISUSE",
    }
)
"""By the first word of sqlite3's error name: its OperationalError is a locked file and a typo."""

AWS: Final[dict[str, Cause]] = _flat(
    {
        TRANSIENT: """
            Throttling ThrottlingException ThrottledException RequestThrottled
            RequestThrottledException EC2ThrottledException TooManyRequestsException
            ProvisionedThroughputExceededException RequestLimitExceeded LimitExceededException
            BandwidthLimitExceeded SlowDown PriorRequestNotComplete TransactionInProgressException
            TransactionConflictException RequestTimeout RequestTimeoutException RequestTimeTooSkewed
            InternalError InternalFailure InternalServerError ServiceUnavailable
            ServiceUnavailableException AccessDenied AccessDeniedException AuthFailure
            UnauthorizedOperation ExpiredToken ExpiredTokenException InvalidToken
            TokenRefreshRequired InvalidAccessKeyId InvalidClientTokenId
            UnrecognizedClientException SignatureDoesNotMatch InvalidSignatureException
            IncompleteSignature MissingAuthenticationToken OptInRequired NotAuthorized
            """,
        POISON: "ConditionalCheckFailedException ValidationException",
    }
)
"""By the code of botocore's ClientError; other codes by their HTTP status."""

CONDITIONS: Final[dict[str, Cause]] = _flat(
    {
        # Of the first five Spark itself says that a restart may help.
        TRANSIENT: """
            MISMATCHED_TOPIC_PARTITIONS_BETWEEN_END_OFFSET_AND_PREFETCHED
            END_OFFSET_HAS_GREATER_OFFSET_FOR_TOPIC_PARTITION_THAN_PREFETCHED
            LOST_TOPIC_PARTITIONS_IN_END_OFFSET_WITH_TRIGGER_AVAILABLENOW
            END_OFFSET_HAS_GREATER_OFFSET_FOR_TOPIC_PARTITION_THAN_LATEST_WITH_TRIGGER_AVAILABLENOW
            KAFKA_START_OFFSET_DOES_NOT_MATCH_ASSIGNED
            SPARK_JOB_CANCELLED OPERATION_CANCELED INTERNAL_ERROR_NETWORK INTERNAL_ERROR_SHUFFLE
            INTERNAL_ERROR_BROADCAST STREAMING_PYTHON_RUNNER_INITIALIZATION_TIMEOUT_FAILURE
            """,
        # Two drivers on one checkpoint, a state that does not fit, data that is gone: a
        # person has to look, and a restart or a letter would hide it.
        PROGRAMMING: """
            CONCURRENT_STREAM_LOG_UPDATE KAFKA_DATA_LOSS
            CANNOT_LOAD_STATE_STORE.KEY_ROW_FORMAT_VALIDATION_FAILURE
            CANNOT_LOAD_STATE_STORE.VALUE_ROW_FORMAT_VALIDATION_FAILURE
            CHECKPOINT_FILE_CHECKSUM_VERIFICATION_FAILED STATE_STORE_KEY_SCHEMA_NOT_COMPATIBLE
            STATE_STORE_VALUE_SCHEMA_NOT_COMPATIBLE STATE_STORE_INVALID_VALUE_SCHEMA_EVOLUTION
            STATE_STORE_KEY_ROW_FORMAT_VALIDATION_FAILURE
            STATE_STORE_VALUE_ROW_FORMAT_VALIDATION_FAILURE STATE_STORE_COMMIT_VALIDATION_FAILED
            STREAMING_CONNECT_SERIALIZATION_ERROR
            """,
        POISON: "MALFORMED_PROTOBUF_MESSAGE MALFORMED_CSV_RECORD KAFKA_NULL_TOPIC_IN_DATA",
        FATAL: "UNABLE_TO_ACQUIRE_MEMORY",
    }
)
"""By Spark's error condition, whole or its part before the dot; others by their SQLSTATE."""

PASSED_ON: Final = frozenset({"TASK_WRITE_FAILED"})
"""Conditions that only say where another error surfaced; their SQLSTATE misleads."""

JAVA: Final[dict[str, Cause]] = _flat(
    {
        TRANSIENT: """
            java.net.ConnectException java.net.NoRouteToHostException java.net.SocketException
            java.net.SocketTimeoutException java.net.UnknownHostException java.io.IOException
            java.util.concurrent.TimeoutException javax.net.ssl.SSLException
            java.sql.SQLTransientException java.sql.SQLRecoverableException
            java.sql.SQLNonTransientConnectionException java.nio.file.AccessDeniedException
            org.apache.hadoop.security.AccessControlException
            org.apache.hadoop.ipc.RemoteException
            org.apache.kafka.common.errors.TimeoutException
            org.apache.kafka.common.errors.NetworkException
            org.apache.kafka.common.errors.DisconnectException
            org.apache.kafka.common.errors.AuthenticationException
            org.apache.kafka.common.errors.SaslAuthenticationException
            org.apache.kafka.common.errors.SslAuthenticationException
            org.apache.kafka.common.errors.TopicAuthorizationException
            org.apache.kafka.common.errors.GroupAuthorizationException
            org.apache.kafka.common.errors.ClusterAuthorizationException
            org.apache.kafka.common.errors.UnknownTopicOrPartitionException
            org.apache.kafka.common.errors.NotEnoughReplicasException
            """,
        POISON: """
            org.apache.kafka.common.errors.RecordTooLargeException
            org.apache.kafka.common.errors.InvalidTopicException
            """,
        PROGRAMMING: "java.lang.ClassNotFoundException java.lang.NoClassDefFoundError",
        FATAL: "java.lang.OutOfMemoryError",
    }
)
"""By the class of a Java exception that carries neither condition nor SQLSTATE."""

WORKER_DIED: Final = "Python worker exited unexpectedly"
"""What Spark says of a worker that ended without telling why."""

PHRASES: Final[dict[str, Cause]] = {
    WORKER_DIED: FATAL,
    "Python worker process terminated due to idle timeout": TRANSIENT,
    "ExecutorLostFailure": TRANSIENT,
}
"""By what Spark writes where it has no condition: an executor that is lost may come back."""
