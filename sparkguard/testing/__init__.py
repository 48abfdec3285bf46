"""For the tests of users and of plugin authors: suites, fault sinks, and states read back."""

from sparkguard.testing.fault_sink import FaultSink
from sparkguard.testing.sinks import SinkSuite, sample_letters
from sparkguard.testing.states import Stored, states

__all__ = ["FaultSink", "SinkSuite", "Stored", "sample_letters", "states"]
