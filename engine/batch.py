"""One batch: how large it may grow, which items are worth putting together, and whose they are."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from enum import Enum
from typing import Any, Generic, TypeVar

import msgspec

from engine.errors import InvalidInput
from engine.scope import Scope

Item = TypeVar("Item")

# An item joins while padding stays within a third of the batch. On queues of uniform and of log-normal lengths this and
# a lookahead of 64 cut padding from 24-68 % to 21-32 % without more batches; a quarter cut it little more, and cost
# up to half as many batches again. Padding up to 1/32 of max_cost is free: such a batch's time is mostly start-up.
_PADDED, _SMALL = 3, 32


class BatchLimits(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """How large a batch, and the queue before it, may grow.

    `max_cost` bounds a batch's padded cost, (largest item) x (number of items), in the unit of the cost function,
    commonly tokens; an item above it runs alone. `micro_chunk` is the number of items that a request may place per
    round: smaller is fairer, larger pads less. `max_queued_cost` bounds the plain cost that waits ahead of a newcomer,
    which is that of its own priority class and of more urgent ones; any request is taken when nothing is ahead.
    """

    max_cost: int
    max_items: int = 1024
    micro_chunk: int = 16
    max_queued_cost: int = 1 << 20

    def __post_init__(self) -> None:
        """Refuse limits that no batch could satisfy.

        Raises:
            InvalidInput: A limit is not a whole number of at least 1.
        """
        for name in self.__struct_fields__:
            value = getattr(self, name)
            if not isinstance(value, int) or value < 1:
                raise InvalidInput(f"batch limit {name} is {value!r}: give a whole number of at least 1")


class Outcome(Enum):
    """What became of a request."""

    WAITING = "queued, or in the running batch"
    SERVED = "has all its results"
    FAILED = "its batch raised, or the batcher was closed before all of it ran"
    CANCELLED = "its caller went away"
    EXPIRED = "its time was spent before all of it ran"


@dataclass(slots=True, eq=False)
class Request(Generic[Item]):
    """The items of one submit and how far they have come.

    The items are placed from the largest to the smallest, so that each micro-chunk is even in itself.
    """

    items: Sequence[Item]
    costs: list[int]
    order: list[int]  # indices into items, in the order of placing
    scope: Scope
    priority: int
    entered: float  # clock time
    deadline: float  # clock time; infinite without one
    arrival: int  # 0, 1, 2, ...
    first_round: int
    queued_cost: int
    unserved: int
    results: list[Any]
    placed: int = 0  # order[:placed] went into batches
    served_s: float = 0.0  # time in which a batch with items of this request ran
    batch: int = 0  # items of the largest of these
    outcome: Outcome = field(default=Outcome.WAITING)

    @property
    def ended(self) -> bool:
        """Whether nothing more will be done for it."""
        return self.outcome is not Outcome.WAITING

    @property
    def queued(self) -> bool:
        """Whether some of its items have not been placed yet."""
        return self.placed < len(self.costs)


class Batch(Generic[Item]):
    """Items that run together.

    A model pads: the batch costs as much as if every item were as large as its largest.

    Args:
        limits: What it may grow to.
    """

    __slots__ = ("_limits", "cost", "items", "largest", "owners")

    def __init__(self, limits: BatchLimits) -> None:
        self._limits = limits
        self.items: list[Item] = []
        self.owners: list[tuple[Request[Item], int]] = []  # for each item, its request and its index there
        self.cost = 0  # without padding
        self.largest = 0

    @property
    def padded_cost(self) -> int:
        """(largest cost) x (number of items)."""
        return self.largest * len(self.items)

    @property
    def requests(self) -> list[Request[Item]]:
        """The requests that have items in it, each once, by first appearance."""
        return list(dict.fromkeys(request for request, _ in self.owners))

    @property
    def full(self) -> bool:
        """Whether not even an item of the smallest cost could join."""
        count = len(self.items) + 1
        return count > self._limits.max_items or (count > 1 and self.largest * count > self._limits.max_cost)

    def accepts(self, cost: int) -> bool:
        """Whether an item of that cost fits and is worth its padding; the first item always is."""
        if not self.items:
            return True
        count = len(self.items) + 1
        padded = max(self.largest, cost) * count
        if count > self._limits.max_items or padded > self._limits.max_cost:
            return False
        padding = padded - self.cost - cost
        return padding <= max(padded // _PADDED, self._limits.max_cost // _SMALL)

    def add(self, request: Request[Item], index: int) -> None:
        """Put one item of a request in."""
        cost = request.costs[index]
        self.items.append(request.items[index])
        self.owners.append((request, index))
        self.cost += cost
        self.largest = max(self.largest, cost)
