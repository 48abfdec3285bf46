"""Failures that a batch function swallowed.

Where user code catches the exception of an action, a flow that decided to fail would be
committed all the same: its records in no output, no letter and no account. Spark keeps the
reason of each failed stage; the worker's own words in it say which flow it was.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any

from sparkguard.driver.listener import drain_bus
from sparkguard.errors import StageFailedError


class Jobs:
    """The jobs that one micro-batch starts on its query's thread."""

    def __init__(self, context: Any) -> None:
        self._context = context
        self._group = context.getLocalProperty("spark.jobGroup.id")
        self._before = max(self._ids(), default=-1)

    def _ids(self) -> list[int]:
        if self._group is None:
            return []
        return list(self._context.statusTracker().getJobIdsForGroup(self._group))

    def failed(
        self, settled: Collection[str], latest: Mapping[str, int]
    ) -> StageFailedError | None:
        """The failure of a flow that was not evaluated again, though the function returned.

        Args:
            settled: flows whose rows were set aside whole.
            latest: the last of Spark's stages in which a task of a flow has ended well.
        """
        if max(self._ids(), default=-1) <= self._before:
            return None
        drain_bus(self._context)
        tracker = self._context.statusTracker()
        for job in sorted(job for job in self._ids() if job > self._before):
            info = tracker.getJobInfo(job)
            if info is None or info.status != "FAILED":
                continue
            for stage in info.stageIds:
                found = StageFailedError.find(self._reason(int(stage)))
                flow = "" if found is None else str(found.facts.get("flow"))
                # Other tasks of the very stage may have ended well: that heals nothing.
                if found is not None and flow not in settled and latest.get(flow, -1) <= stage:
                    return found
        return None

    def _reason(self, stage: int) -> str:
        store = self._context._jsc.sc().statusStore()  # noqa: SLF001  # no public door to reasons
        reason = store.lastStageAttempt(stage).failureReason()
        return str(reason.get()) if reason.isDefined() else ""
