"""Jobs on the cluster end with their tests, as those of the fault injections do."""

from tests.faults.conftest import _no_job_left

__all__ = ["_no_job_left"]
