"""For the tests of users and of plugin authors: suites that a member must pass, and fault sinks."""

from sparkguard.testing.fault_sink import FaultSink
from sparkguard.testing.sinks import SinkSuite, sample_letters

__all__ = ["FaultSink", "SinkSuite", "sample_letters"]
