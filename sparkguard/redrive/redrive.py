"""Redrive: send letters back to be processed again, with proof of what became of each.

The letters that are meant are copied to the state first, whole: those that come
meanwhile are none of them, and compaction or retention takes none away. They go chunk by chunk, and
a chunk is noted in the journal once each of its letters is acknowledged. So whoever is killed sends
at most the last chunk twice, with the same ids.
"""

from __future__ import annotations

import socket
import tempfile
import threading
from collections import Counter
from collections.abc import Callable, Mapping
from contextlib import closing
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Final

from sparkguard.deadletters.journal import Entry, Journal, Run, new_run_id
from sparkguard.deadletters.lock import Lock, only_one, user
from sparkguard.deadletters.selection import Selection
from sparkguard.deadletters.store import Store
from sparkguard.errors import LettersError
from sparkguard.redrive.fates import GOING, Rules, Share, Way, freeze, origins, shares
from sparkguard.redrive.sending import Target
from sparkguard.redrive.through import Through
from sparkguard.redrive.work import Processed, Work, chunks
from sparkguard.sinks.base import Sink
from sparkguard.sinks.kafka import KafkaSink

_NAMED: Final = 20

Progress = Callable[[Run, int], None]
"""Told how many letters of the redrive are done, at first and after each chunk."""


def _quiet(run: Run, done: int) -> None:
    """Tell nobody."""


@dataclass(slots=True, kw_only=True)
class Done:
    """What a call did.

    Attributes:
        counts: letters by what became of them: ``sent``, ``parked``, ``left``.
        refused: the first of those that were left, by id, and why.
        resumed: it went on with a redrive that was begun before.
        stopped: it was asked to stop before all had gone; the redrive has not ended.
    """

    run: Run
    resumed: bool = False
    stopped: bool = False
    counts: Counter[str] = field(default_factory=Counter)
    refused: dict[str, str] = field(default_factory=dict)

    def add(self, entries: list[Entry]) -> None:
        """Count what became of some letters."""
        self.counts.update(one.what for one in entries)
        for one in entries:
            if one.what == "left" and len(self.refused) < _NAMED:
                self.refused[one.id] = one.why or ""


class Redrive:
    """Sends letters back; one at a time for a state.

    Args:
        state: path or URI of the app's state.
        sinks: of the app by name; their topics are no targets, and the parking lot is one of them.

    Attributes:
        stop: once it is set, nothing more is sent; what is under way is waited for and noted.

    Raises:
        LettersError: the target is a topic of letters, or the parking lot is no sink.
    """

    def __init__(
        self, state: str, target: Target | Through, rules: Rules, sinks: Mapping[str, Sink]
    ) -> None:
        self.journal = Journal(state)
        self.stop = threading.Event()
        self._state = state
        self._target = target
        if isinstance(target, Through):
            self._way, self._topic, self._name = Way.FLOW, None, target.name
            # What fails there again is the same letter, and stays in its sink.
            rules = replace(rules, parking_lot=None)
        else:
            self._way = Way.TOPIC if target.topic else Way.ORIGIN
            self._topic, self._name = target.topic, ""
        self.rules = rules
        self.sinks = sinks
        if rules.parking_lot is not None and rules.parking_lot not in sinks:
            raise LettersError(f"The parking lot {rules.parking_lot!r} is none of the sinks.")
        self._refuse_loop(frozenset({self._topic or ""}))

    @property
    def through(self) -> bool:
        """Whether letters go through a flow or a function, and to no topic."""
        return self._way is Way.FLOW

    def plan(self, store: Store, selection: Selection) -> list[Share]:
        """What would become of the selected letters; sends nothing, and asks no target."""
        return shares(store, selection, self.rules, self._way)

    def start(
        self,
        store: Store,
        selection: Selection,
        words: str = "",
        *,
        progress: Progress = _quiet,
        take_over: bool = False,
    ) -> Done:
        """Send the selected letters; goes on with a redrive of the same words that has not ended.

        Args:
            words: names the selection for people; `selection` as SQL if empty.

        Raises:
            LettersError: another redrive is running or has not ended, or the target is not there.
            ProduceError: the brokers cannot be reached any more; what was sent is noted.
            SinkError: the parking lot cannot be written.
        """
        words = words or selection.condition
        with only_one(self._state, take_over=take_over) as lock:
            found = next((run for run in self.journal.runs() if not run.ended), None)
            if found is not None:
                same = words, self._topic, self._name
                if (found.selection, found.topic, found.through) != same:
                    raise LettersError(
                        f"The redrive {found.id} ({found.selection}) has not ended. Go on with "
                        f"--resume {found.id}, or end it: redrives {found.id} --abandon."
                    )
                return self._go(lock, Done(run=found, resumed=True), progress)
            return self._go(lock, Done(run=self._begin(store, selection, words)), progress)

    def resume(
        self,
        run_id: str,
        *,
        progress: Progress = _quiet,
        take_over: bool = False,
    ) -> Done:
        """Go on with a redrive that has not ended; raises as `start`."""
        with only_one(self._state, take_over=take_over) as lock:
            return self._go(lock, Done(run=self.journal.run(run_id), resumed=True), progress)

    def _begin(self, store: Store, selection: Selection, words: str) -> Run:
        rules, servers = self.rules, ""
        if isinstance(self._target, Target):
            servers = self._target.servers
            # First, because choosing may take long.
            self._check(self._target, store, selection)
        counts: Counter[str] = Counter()
        for share in self.plan(store, selection):
            counts[share.fate] += share.count
        run = Run(
            id=new_run_id(),
            by=user(),
            host=socket.gethostname(),
            began=datetime.now(UTC).isoformat(timespec="seconds"),
            selection=words,
            servers=servers,
            topic=self._topic,
            through=self._name,
            left_out={name: n for name, n in counts.items() if name not in GOING},
            keep_order=rules.keep_order,
        )
        with tempfile.TemporaryDirectory(prefix="sparkguard-redrive-") as folder:
            file = Path(folder) / "letters.parquet"
            letters = freeze(store, selection, rules, file, way=self._way)
            run = replace(run, letters=letters)
            if letters:
                self.journal.begin(run, file)
        return run

    def _go(self, lock: Lock, done: Done, progress: Progress) -> Done:
        run = done.run
        if not run.letters:
            return done
        target = self._target
        self._refuse_other(run)
        with self.journal.letters(run) as file, closing(self._work(run, target)) as work:
            first, noted = self.journal.position(run)
            count = first + len(noted)
            progress(run, count)
            for chunk in chunks(file, first, self.rules.rate):
                lock.check()
                entries = work.chunk(chunk, noted, self.stop.is_set)
                done.add(entries)
                count += len(entries)
                progress(run, count)
                if self.stop.is_set() and count < run.letters:
                    done.stopped = True
                    return done
        done.run = self.journal.end(run)
        return done

    def _refuse_other(self, run: Run) -> None:
        """Refuse to go on elsewhere: nobody could tell which letters went where."""
        target = self._target
        if (run.through != "") != isinstance(target, Through):
            how = f"went through {run.through!r}" if run.through else "went to a topic"
            raise LettersError(f"The redrive {run.id} {how}; go on with it in the same way.")
        if isinstance(target, Target) and _servers(target.servers) != _servers(run.servers):
            raise LettersError(
                f"The redrive {run.id} goes to {run.servers}, and not to {target.servers}. Go on "
                f"with --resume {run.id} --to-servers {run.servers}, or end it: redrives {run.id} "
                "--abandon."
            )

    def _work(self, run: Run, target: Target | Through) -> Work | Processed:
        if isinstance(target, Through):
            return Processed(self.journal, run, target)
        target = replace(target, topic=run.topic)
        return Work(self.journal, run, target, self.rules, sinks=self.sinks)

    def _check(self, target: Target, store: Store, selection: Selection) -> None:
        partitions = target.partitions(*([target.topic] if target.topic else []))
        if target.topic is None:
            topics = origins(store, selection, self.rules)
            self._refuse_loop(topics)
            for one in sorted(topics):
                target.place(one, partitions)

    def _refuse_loop(self, topics: frozenset[str]) -> None:
        for name, sink in self.sinks.items():
            if isinstance(sink, KafkaSink) and sink.topic in topics:
                raise LettersError(
                    f"{sink.topic!r} is the topic of the sink {name!r}: letters are no place to "
                    "send letters to. Name the topic that the query reads."
                )


def _servers(said: str) -> set[str]:
    return {one.strip() for one in said.split(",")}
