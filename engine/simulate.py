"""Foretells how a graph behaves on machines that one does not have yet, by discrete-event simulation.

What is simulated is the compiled graph itself: a step starts when its last input is there, a gathered step asks every
shard, a call waits in line at the least busy replica of its shard and takes as long as one of the measured calls did.
"""

from __future__ import annotations

import heapq
import itertools
import math
import random
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import msgspec

from engine.errors import InvalidInput
from engine.graph import Graph
from engine.plan import Compiled, Op, compile_graph
from engine.trace import Span

CALLER = ""  # where light steps run


class Times(msgspec.Struct, frozen=True):
    """What a step's calls took, in seconds: `served` by the step itself, `hop` on the way there and back."""

    served: tuple[float, ...]
    hop: tuple[float, ...] = (0.0,)

    def scaled(self, factor: float) -> Times:
        """The same for calls that take so many times as long."""
        return Times(tuple(factor * seconds for seconds in self.served), self.hop)


class Place(msgspec.Struct, frozen=True, kw_only=True):
    """How many of a stage there are.

    Args:
        shards: Partitions, all of which a gathered step asks.
        replicas: Copies of each.
        slots: Calls that a copy works on at once.
        cost: Of one copy, in any money an hour.
    """

    shards: int = 1
    replicas: int = 1
    slots: int = 1
    cost: float = 0.0

    def __post_init__(self) -> None:
        for name in ("shards", "replicas", "slots"):
            if getattr(self, name) < 1:
                raise InvalidInput(f"{name} is {getattr(self, name)}; expected 1 or more")


class Forecast(msgspec.Struct, frozen=True, kw_only=True):
    """What the simulation saw, without its first tenth.

    Attributes:
        rate: Requests a second that were answered.
        p50_s: Median of the time from a request's arrival to its answer; `p95_s` and `p99_s` likewise.
        busy: By stage, the share of its slots' time in which they worked, 0 to 1; "" is the caller.
        partial: Share of the answers, 0 to 1, that went without some shards.
        cost_an_hour: Of all copies.
        cost_of_1000: Of a thousand answers.
    """

    rate: float
    p50_s: float
    p95_s: float
    p99_s: float
    busy: dict[str, float]
    partial: float
    cost_an_hour: float
    cost_of_1000: float


def times_of(spans: Sequence[Sequence[Span]]) -> dict[str, Times]:
    """The times of each step in the traces of several requests; skipped steps are left out.

    Args:
        spans: The spans of each trace.
    """
    by_step: dict[str, list[Span]] = {}
    for trace in spans:
        for span in trace:
            if not span.note.startswith("skipped"):
                by_step.setdefault(span.step, []).append(span)
    return {
        step: Times(tuple(max(0.0, s.served_s) for s in some), tuple(s.hop_s for s in some))
        for step, some in by_step.items()
    }


def simulate(
    graph: Graph[Any, Any],
    times: Mapping[str, Times],
    places: Mapping[str, Place],
    *,
    rate: float | None = None,
    clients: int | None = None,
    requests: int = 10_000,
    seed: int = 0,
) -> Forecast:
    """How the graph would do.

    Args:
        graph: What is run.
        times: By step. A step without any is skipped, as by its condition.
        places: By stage; "" is the caller, where light steps take turns. Stages that are not named have one of all.
        rate: Requests a second that arrive at random moments (a Poisson process).
        clients: Instead, so many who ask again as soon as they have an answer.
        requests: How many to simulate.
        seed: Of everything that is drawn.

    Raises:
        InvalidInput: Neither or both of `rate` and `clients` are given, or one is not above 0; or there are fewer than
            ten requests.
    """
    if (rate is None) == (clients is None) or not (rate or clients or 0) > 0:
        raise InvalidInput(f"rate is {rate!r} and clients {clients!r}; expected one of them, above 0")
    if requests < 10:
        raise InvalidInput(f"requests is {requests}; expected 10 or more")
    run = _Run(compile_graph(graph), times, places, random.Random(seed))
    if rate is not None:
        at = 0.0
        for _ in range(requests):
            at += run.random.expovariate(rate)
            run.at(at, run.begin)
    else:
        left = iter(range(requests))

        def ask_again() -> None:
            for _ in itertools.islice(left, 1):
                run.begin()

        run.then = ask_again
        for _ in range(clients or 0):
            ask_again()
    run.work()
    return run.forecast()


class _Line:
    """One replica: its slots, who waits for one, and the calls that its callers know to be outstanding."""

    __slots__ = ("free", "outstanding", "served_s", "waiting")

    def __init__(self, slots: int) -> None:
        self.free = slots
        self.outstanding = 0
        self.served_s = 0.0
        self.waiting: deque[Callable[[], None]] = deque()


@dataclass(slots=True)
class _Request:
    began: float
    waits_for: list[int]
    partial: bool = False
    left: int = field(default=0)


class _Run:
    """The clock, what will happen, and what is there."""

    def __init__(
        self, compiled: Compiled, times: Mapping[str, Times], places: Mapping[str, Place], chance: random.Random
    ) -> None:
        self.random = chance
        self.then: Callable[[], object] = lambda: None  # when a request has its answer
        self._compiled = compiled
        self._times = times
        self._places = {CALLER: Place(), **{s: Place() for s in _stages(compiled)}, **places}
        self._lines = {
            name: [[_Line(place.slots) for _ in range(place.replicas)] for _ in range(place.shards)]
            for name, place in self._places.items()
        }
        self._now = 0.0
        self._events: list[tuple[float, int, Callable[[], object]]] = []
        self._numbers = itertools.count()
        self._took: list[tuple[float, float, bool]] = []  # when, seconds, partial

    def at(self, when: float, what: Callable[[], object]) -> None:
        heapq.heappush(self._events, (when, next(self._numbers), what))

    def work(self) -> None:
        while self._events:
            self._now, _, what = heapq.heappop(self._events)
            what()

    # One request

    def begin(self) -> None:
        request = _Request(self._now, list(self._compiled.waiting), left=len(self._compiled.ops))
        for index in self._compiled.first:
            self._start(request, index)

    def _start(self, request: _Request, index: int) -> None:
        op = self._compiled.ops[index - self._compiled.inputs]
        times = self._times.get(op.name)
        if times is None:
            self._done(request, op)
            return
        placement = op.node.step.placement
        shards = self._lines[CALLER if placement is None else placement.stage.name]
        asked = shards if placement is not None and placement.merge is not None else shards[:1]
        answered = 0
        over = False

        def answer() -> None:
            nonlocal answered, over
            answered += 1
            if answered == len(asked) and not over:
                over = True
                self._done(request, op)

        def spent() -> None:
            nonlocal over
            if not over:
                over = request.partial = True
                self._done(request, op)

        for shard in asked:
            self._call(min(shard, key=lambda line: line.outstanding), times, answer)
        limit = placement.policy.time_s if placement is not None and placement.policy.loses else None
        if limit is not None:
            self.at(self._now + limit, spent)

    def _call(self, line: _Line, times: Times, answer: Callable[[], None]) -> None:
        served, hop = self.random.choice(times.served), self.random.choice(times.hop)
        line.outstanding += 1

        def serve() -> None:
            line.free -= 1
            line.served_s += served
            self.at(self._now + served, leave)

        def leave() -> None:
            line.free += 1
            if line.waiting:
                line.waiting.popleft()()
            self.at(self._now + hop / 2, come_back)

        def come_back() -> None:
            line.outstanding -= 1
            answer()

        def arrive() -> None:
            if line.free:
                serve()
            else:
                line.waiting.append(serve)

        self.at(self._now + hop / 2, arrive)

    def _done(self, request: _Request, op: Op) -> None:
        request.left -= 1
        last = not request.left  # asked for now: a consumer that is skipped is done before this returns
        for consumer in op.consumers:
            request.waits_for[consumer] -= 1
            if not request.waits_for[consumer]:
                self._start(request, consumer)
        if last:
            self._took.append((self._now, self._now - request.began, request.partial))
            self.then()

    # All of them

    def forecast(self) -> Forecast:
        settled = self._took[len(self._took) // 10 :]
        seconds = sorted(took for _, took, _ in settled)
        lasted = settled[-1][0] - settled[0][0]
        rate = (len(settled) - 1) / lasted if lasted else math.inf
        cost = sum(p.cost * p.shards * p.replicas for p in self._places.values())
        return Forecast(
            rate=rate,
            p50_s=_percentile(seconds, 0.5),
            p95_s=_percentile(seconds, 0.95),
            p99_s=_percentile(seconds, 0.99),
            busy={name: self._busy(name) for name in self._places},
            partial=sum(partial for _, _, partial in settled) / len(settled),
            cost_an_hour=cost,
            cost_of_1000=cost / 3.6 / rate if rate else math.inf,
        )

    def _busy(self, name: str) -> float:
        lines = [line for shard in self._lines[name] for line in shard]
        total = len(lines) * self._places[name].slots * self._now
        return sum(line.served_s for line in lines) / total if total else 0.0


def _stages(compiled: Compiled) -> set[str]:
    return {op.node.step.placement.stage.name for op in compiled.ops if op.node.step.placement is not None}


def _percentile(ordered: Sequence[float], share: float) -> float:
    return ordered[min(len(ordered) - 1, int(share * len(ordered)))]
