"""The order in which waiting requests fill batches, decided without threads, event loop or clock.

1. *Priority class.* A more urgent class always goes first.
2. *Rounds.* In each round every waiting request may place one micro-chunk, so a request of 500 items and ten requests
   of one item take turns. A newcomer joins the round that is being served.
3. *Earliest deadline first* inside a round, hence among all requests that fit into one micro-chunk; then by arrival.

Under lasting overload the largest requests wait longest, which finishes the most requests; the others end at their
deadline, or are refused at the door.

A request whose items do not suit the batch (engine/batch.py) is passed over, but the first in the order is always
taken. So whoever is passed over stands nearer to the front at the next batch, and at the front never waits for another.
"""

from __future__ import annotations

import heapq
import math
from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any, Generic, TypeVar, cast

import msgspec

from engine.batch import Batch, BatchLimits, Outcome, Request
from engine.errors import Cancelled, DeadlineExceeded, QueueFull, RequestEnded
from engine.scope import Scope

Item = TypeVar("Item")

_LOOKAHEAD = 64  # requests that one batch may pass over: bounds the work of a decision
_MEMORY = 0.9  # weight of the past, per batch, in the measured service rate
_UNMEASURED_RETRY_S = 1.0  # what a refused caller is told before the first batch has been timed


class BatcherStatistics(msgspec.Struct, frozen=True, kw_only=True):
    """Counters since the start, in requests unless the name says otherwise.

    submitted = served + failed + dropped_cancelled + dropped_expired + waiting.
    """

    submitted: int
    served: int
    failed: int
    dropped_cancelled: int
    dropped_expired: int
    waiting: int  # queued or in the running batch
    rejected: int  # refused at the door, not counted as submitted
    batches: int
    items: int
    mean_batch_items: float
    padding_share: float  # share of the batches' cost that was padding, 0 to 1
    cost_per_s: float  # service rate of late, without padding; 0 before the first batch
    queued_cost: int

    @property
    def queued_seconds(self) -> float:
        """Time until what is queued has been served at the rate of late; 0 before the first batch."""
        return self.queued_cost / self.cost_per_s if self.cost_per_s > 0 else 0.0


class BatchQueue(Generic[Item]):
    """Requests that wait: events in (admit, drop, complete, fail), decisions out (form).

    Every decision takes O(log n) per micro-chunk and O(1) per item. One thread at a time may call.

    Args:
        limits: Sizes of a batch and of the queue.
        cost: Cost of an item; below 1 counts as 1. Called once per item, on admission.
        name: Begins every message.
    """

    def __init__(self, limits: BatchLimits, *, cost: Callable[[Item], int], name: str) -> None:
        self._limits = limits
        self._cost = cost
        self._name = name
        self._order: _LazyHeap[Item] = _LazyHeap()  # by priority class, round, deadline, arrival
        self._deadlines: _LazyHeap[Item] = _LazyHeap()  # by deadline; only requests that have one
        self._round: Counter[int] = Counter()  # by priority class: the round that is being served
        self._queued_cost: Counter[int] = Counter()  # by priority class
        self._outcomes: Counter[Outcome] = Counter()
        self._submitted = self._rejected = self._batches = self._items = 0
        self._cost_total = self._padded_total = 0
        self._recent_cost = self._recent_s = 0.0

    def admit(self, items: Sequence[Item], scope: Scope, now: float) -> Request[Item]:
        """Queue the items of one submit, of which there is at least one.

        Raises:
            QueueFull: Too much waits ahead of it.
        """
        costs = [max(1, self._cost(item)) for item in items]
        total, priority = sum(costs), int(scope.priority)
        self._refuse_when_full(total, priority)
        remaining = scope.remaining_s()
        request = Request(
            items=items,
            costs=costs,
            order=sorted(range(len(costs)), key=costs.__getitem__, reverse=True),
            scope=scope,
            priority=priority,
            entered=now,
            deadline=math.inf if remaining is None else now + remaining,
            arrival=self._submitted,
            first_round=self._round[priority],
            queued_cost=total,
            unserved=len(costs),
            results=[None] * len(costs),
        )
        self._submitted += 1
        self._queued_cost[priority] += total
        self._push(request)
        if remaining is not None:
            self._deadlines.push((request.deadline, request.arrival), request)
        return request

    def form(self, now: float) -> tuple[Batch[Item], list[tuple[Request[Item], RequestEnded]]]:
        """Choose the next batch, and drop what is no longer worth running.

        Returns:
            The batch, empty only if nothing waits; the requests that were dropped, each with the reason.
        """
        dropped = self._drop_expired(now)
        batch: Batch[Item] = Batch(self._limits)
        passed_over: list[Request[Item]] = []
        while not batch.full and len(passed_over) < _LOOKAHEAD and (request := self._order.pop()):
            if request.scope.cancelled:
                dropped.append((request, self._drop_cancelled(request, now)))
            elif not self._place(request, batch):
                passed_over.append(request)
            elif request.queued:
                self._push(request)
        for request in passed_over:
            self._push(request)
        return batch, dropped

    def drop(self, request: Request[Item], outcome: Outcome) -> None:
        """End a request for a reason that lies outside the queue; nothing if it has ended already."""
        if not request.ended:
            self._end(request, outcome)

    def complete(self, batch: Batch[Item], results: Sequence[Any], seconds: float) -> list[Request[Item]]:
        """Hand out the results of a batch that ran for `seconds`: one per item, in its order.

        Returns:
            The requests that now have all their results.
        """
        self._measure(batch, seconds)
        for (request, index), result in zip(batch.owners, results, strict=True):
            if not request.ended:
                request.results[index] = result
                request.unserved -= 1
        finished = [request for request in batch.requests if not request.ended and request.unserved == 0]
        for request in finished:
            self._end(request, Outcome.SERVED)
        return finished

    def fail(self, batch: Batch[Item], seconds: float) -> list[Request[Item]]:
        """End the requests of a batch that raised after `seconds`; what else they have queued is dropped.

        Returns:
            The requests that failed by it.
        """
        self._measure(batch, seconds)
        failed = [request for request in batch.requests if not request.ended]
        for request in failed:
            self._end(request, Outcome.FAILED)
        return failed

    def statistics(self) -> BatcherStatistics:
        """The counters as they stand."""
        return BatcherStatistics(
            submitted=self._submitted,
            served=self._outcomes[Outcome.SERVED],
            failed=self._outcomes[Outcome.FAILED],
            dropped_cancelled=self._outcomes[Outcome.CANCELLED],
            dropped_expired=self._outcomes[Outcome.EXPIRED],
            waiting=self._submitted - self._outcomes.total(),
            rejected=self._rejected,
            batches=self._batches,
            items=self._items,
            mean_batch_items=self._items / self._batches if self._batches else 0.0,
            padding_share=1 - self._cost_total / self._padded_total if self._padded_total else 0.0,
            cost_per_s=self._rate(),
            queued_cost=self._queued_cost.total(),
        )

    def _refuse_when_full(self, cost: int, priority: int) -> None:
        ahead = sum(queued for other, queued in self._queued_cost.items() if other <= priority)
        excess = ahead + cost - self._limits.max_queued_cost
        if excess <= 0 or ahead == 0:
            return
        self._rejected += 1
        rate = self._rate()
        retry_after_s = min(excess, ahead) / rate if rate > 0 else _UNMEASURED_RETRY_S
        raise QueueFull(
            f"{self._name}: {cost} more cost units do not fit, {ahead} of {self._limits.max_queued_cost} are queued; "
            f"try again in {retry_after_s:.1f} s or raise max_queued_cost",
            retry_after_s=retry_after_s,
        )

    def _rate(self) -> float:
        return self._recent_cost / self._recent_s if self._recent_s > 0 else 0.0

    def _push(self, request: Request[Item]) -> None:
        self._order.push((request.priority, self._round_of(request), request.deadline, request.arrival), request)

    def _round_of(self, request: Request[Item]) -> int:
        return request.first_round + request.placed // self._limits.micro_chunk

    def _place(self, request: Request[Item], batch: Batch[Item]) -> bool:
        """Put what is left of the request's turn into the batch, as far as it fits; whether any did."""
        begin, turn = request.placed, self._limits.micro_chunk
        turn_round, cost_before = self._round_of(request), batch.cost
        for index in request.order[begin : begin + turn - begin % turn]:
            if not batch.accepts(request.costs[index]):
                break
            batch.add(request, index)
            request.placed += 1
        if request.placed == begin:
            return False
        self._round[request.priority] = max(turn_round, self._round[request.priority])
        self._dequeue_cost(request, batch.cost - cost_before)
        return True

    def _dequeue_cost(self, request: Request[Item], cost: int) -> None:
        request.queued_cost -= cost
        self._queued_cost[request.priority] -= cost

    def _end(self, request: Request[Item], outcome: Outcome) -> None:
        """The one way out for a request."""
        request.outcome = outcome
        self._outcomes[outcome] += 1
        self._dequeue_cost(request, request.queued_cost)
        request.items = ()  # entries in the heaps may outlive the request; what it carried must not
        if outcome is not Outcome.SERVED:
            request.results = []

    def _drop_cancelled(self, request: Request[Item], now: float) -> Cancelled:
        self._end(request, Outcome.CANCELLED)
        text = f"{self._name}: the request was cancelled, noticed {now - request.entered:.3f} s after it was queued"
        return Cancelled(text, request_id=request.scope.id)

    def _drop_expired(self, now: float) -> list[tuple[Request[Item], RequestEnded]]:
        dropped: list[tuple[Request[Item], RequestEnded]] = []
        while (request := self._deadlines.first()) and request.deadline <= now:
            self._deadlines.pop()
            if not request.queued:  # all of it is in the running batch: its results may still be of use
                continue
            self._end(request, Outcome.EXPIRED)
            text = f"{self._name}: the time was spent {now - request.entered:.3f} s after queueing; allow more time"
            dropped.append((request, DeadlineExceeded(text, request_id=request.scope.id)))
        return dropped

    def _measure(self, batch: Batch[Item], seconds: float) -> None:
        self._batches += 1
        self._items += len(batch.items)
        self._cost_total += batch.cost
        self._padded_total += batch.padded_cost
        self._recent_cost = _MEMORY * self._recent_cost + batch.cost
        self._recent_s = _MEMORY * self._recent_s + seconds
        for request in batch.requests:
            request.served_s += seconds
            request.batch = max(request.batch, len(batch.items))


class _LazyHeap(Generic[Item]):
    """A heap from which ended requests vanish: when they surface, or in a sweep before the heap outgrows its room.

    The room is twice what lived at the last sweep, so a push stays O(log n) and cancelled requests cannot pile up.
    """

    __slots__ = ("_entries", "_room")

    def __init__(self) -> None:
        self._entries: list[tuple[Any, ...]] = []  # the key's numbers, then the request
        self._room = 64

    def push(self, key: tuple[float, ...], request: Request[Item]) -> None:
        """Add a request under a key that no other has."""
        if len(self._entries) >= self._room:
            self._entries = [entry for entry in self._entries if not entry[-1].ended]
            heapq.heapify(self._entries)
            self._room = max(64, 2 * len(self._entries))
        heapq.heappush(self._entries, (*key, request))

    def first(self) -> Request[Item] | None:
        """The live request of the smallest key; None when nothing lives."""
        while self._entries and self._entries[0][-1].ended:
            heapq.heappop(self._entries)
        return cast("Request[Item]", self._entries[0][-1]) if self._entries else None

    def pop(self) -> Request[Item] | None:
        """Remove and return `first()`."""
        while self._entries:
            request = cast("Request[Item]", heapq.heappop(self._entries)[-1])
            if not request.ended:
                return request
        return None
