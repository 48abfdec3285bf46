"""A sub-batch: which rows of a micro-batch a batch function is given."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class SubBatch:
    """The third argument of a batch function that asks for it.

    Attributes:
        batch_id: of the micro-batch.
        rows: places of the rows in the micro-batch as it was set aside; None for all of it, as
            it came.
        transaction: the name under which these rows are written. The same rows have the same
            name after a crash, other rows another one: a target that remembers the names it has
            committed writes each row once. For Delta it is ``txnAppId``, with `batch_id` as
            ``txnVersion``. It has the query's id, so a new checkpoint has new names.
    """

    batch_id: int
    rows: range | None = None
    transaction: str = ""

    @property
    def whole(self) -> bool:
        """Whether it is all of the micro-batch."""
        return self.rows is None

    @classmethod
    def of(cls, writer: str, batch_id: int, rows: range | None) -> SubBatch:
        """These rows, or all of them, with a name for their write: ``writer/batch/range``."""
        part = "all" if rows is None else f"{rows.start}-{rows.stop}"
        return cls(batch_id=batch_id, rows=rows, transaction=f"{writer}/{batch_id}/{part}")
