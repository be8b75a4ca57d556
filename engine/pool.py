"""A started stage: how the answers of its shards come together, and what is done without some of them."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Callable, Mapping, Sequence
from typing import Any

from engine.credits import Cost, read
from engine.errors import DeadlineExceeded, Incomplete, QueueFull, StageDied
from engine.host import Answer, HostStatistics
from engine.method import describe
from engine.policy import ONCE
from engine.replicas import Replicas
from engine.scope import Loss, Scope
from engine.stage import Stage
from engine.step import Placement, Step

_FORGIVEN = (StageDied, QueueFull, DeadlineExceeded)  # of a shard, by a policy that loses some


class Pool:
    """A started stage.

    Args:
        stage: What was started.
        shards: Its replicas, one entry a shard (one in all for a stage without shards).
    """

    def __init__(self, stage: Stage[Any], shards: Sequence[Replicas]) -> None:
        self.stage = stage
        self.shards = tuple(shards)

    async def call(self, step: Step[Any, Any], args: Sequence[Any], scope: Scope) -> Answer:
        """Run a step's method: on every shard for a gathered step, on the only one otherwise.

        What the step's policy lets it do without is noted in the scope.

        Raises:
            HeadraceError: Of the first shard whose failure the policy does not forgive; the other calls are cancelled.
            Incomplete: Too few shards answered in time.
        """
        placement: Placement = step.placement  # type: ignore[assignment] # only steps of stages come here
        alone = len(self.shards) == 1
        # A gathered step that has one shard has nothing to gain by giving it less time.
        seconds = None if placement.merge and alone else placement.policy.seconds(scope.remaining_s())
        inner = scope if placement.policy is ONCE or seconds is None else scope.narrowed(seconds)
        if placement.merge is None or alone:
            return await self._alone(step, args, scope, inner)
        calls = {
            asyncio.create_task(self.shards[number].call(describe(step.fn), own, inner, placement.policy)): number
            for number, own in self._asked(step, args)
        }
        try:
            missing = await _settled(calls, inner, loses=placement.policy.loses)
        finally:
            await _ended(calls)
        answers = {number: call.result() for call, number in calls.items() if number not in missing}
        for number, answer in answers.items():
            self._heard(number, answer, scope)
        if missing:
            self._do_without(missing, step, scope, nothing=len(missing) == len(self.shards))
        return _merged(placement.merge, list(answers.values()))

    def _asked(self, step: Step[Any, Any], args: Sequence[Any]) -> list[tuple[int, Sequence[Any]]]:
        """The shards that a gathered step asks, each with its arguments."""
        if step.placement is None or step.placement.split is None:
            return [(number, args) for number in range(len(self.shards))]
        parts = step.placement.split(len(self.shards), *args)
        return [(number, part) for number, part in zip(range(len(self.shards)), parts, strict=True) if part is not None]

    async def _alone(self, step: Step[Any, Any], args: Sequence[Any], scope: Scope, inner: Scope) -> Answer:
        placement: Placement = step.placement  # type: ignore[assignment] # as in `call`
        call = self.shards[0].call(describe(step.fn), args, inner, placement.policy)
        if inner is scope:
            answer = await call
        else:
            try:
                async with asyncio.timeout(inner.remaining_s()):
                    answer = await call
            except TimeoutError:
                scope.check()
                raise DeadlineExceeded(
                    f"step {step.name!r} took longer than its policy allows", step=step.name, request_id=scope.id
                ) from None
        self._heard(0, answer, scope)
        return answer

    def _heard(self, number: int, answer: Answer, scope: Scope) -> None:
        scope.epochs.setdefault((self.stage.name, number), set()).add(answer.epoch)

    def _do_without(
        self, missing: Mapping[int, BaseException], step: Step[Any, Any], scope: Scope, *, nothing: bool
    ) -> None:
        """Notes the missing shards in the scope, or raises when the policy asks for more."""
        policy = step.placement.policy if step.placement else ONCE
        shards = tuple(sorted(missing))
        first = missing[shards[0]]
        if nothing:
            raise first
        shares = self._shares(shards)
        coverage = max(0.0, 1 - sum(shares))
        if coverage < policy.coverage and policy.below == "fail":
            raise Incomplete(
                f"shards {', '.join(map(str, shards))} of stage {self.stage.name!r} did not answer ({first}); the "
                f"others hold {coverage:.0%} of the data, and step {step.name!r} asks for {policy.coverage:.0%}",
                shards=shards,
                coverage=coverage,
                step=step.name,
            ) from first
        scope.losses.append(Loss(step.name, self.stage.name, shards, shares))
        if scope.trace is not None:
            scope.trace.note(f"{step.name}: without shards {', '.join(map(str, shards))}: {first}")

    def _shares(self, numbers: Sequence[int]) -> tuple[float, ...]:
        """Of the data in those shards; one that never answered is taken to hold as much as the mean of the others."""
        known = [shard.weight for shard in self.shards if shard.weight is not None]
        mean = sum(known) / len(known)
        weights = [mean if shard.weight is None else shard.weight for shard in self.shards]
        return tuple(weights[number] / (sum(weights) or 1.0) for number in numbers)

    async def stream(
        self, step: Step[Any, Any], args: Sequence[Any], scope: Scope, cost: Cost
    ) -> AsyncGenerator[Any, None]:
        """The items of a step's stream; closing the generator stops its producer.

        When the producer dies before its first item, and the step's policy lets it be run twice, a sibling begins anew.
        Afterwards nothing is tried again: what a second producer says would not continue what the first one said.
        """
        shard, placement = self.shards[0], step.placement
        live = placement is not None and placement.live
        again = placement is not None and placement.policy.idempotent
        used: list[Any] = []
        while True:
            await shard.another(used, scope, patient=again)
            used.append(shard.take(used))
            items = read(used[-1].transport.link(describe(step.fn), args, scope, live=live), cost=cost)
            begun = False
            try:
                async for item in items:
                    if not begun:
                        shard.answered(used[-1])
                    begun = True
                    yield item
            except StageDied:
                shard.died(used[-1])
                if begun or not again or not await shard.may_retry(used, scope, patient=True):
                    raise
            else:
                return
            finally:
                await items.aclose()
                shard.give_back(used[-1])

    @property
    def outstanding(self) -> int:
        """Calls and streams that have not ended."""
        return sum(shard.outstanding for shard in self.shards)

    async def statistics(self) -> list[HostStatistics]:
        """Counters of every replica, shard by shard."""
        return [await t.statistics() for shard in self.shards for t in shard.transports]

    async def aclose(self) -> None:
        """End every replica."""
        await asyncio.gather(*(t.aclose() for shard in self.shards for t in shard.transports))


async def _settled(calls: Mapping[asyncio.Task[Answer], int], scope: Scope, *, loses: bool) -> dict[int, BaseException]:
    """Waits until all have answered or the time is spent; returns the shards that are missing, and why.

    Raises:
        BaseException: Of the first that failed, unless such failures are forgiven.
    """
    missing: dict[int, BaseException] = {}
    running = set(calls)
    while running:
        done, running = await asyncio.wait(running, timeout=scope.remaining_s(), return_when=asyncio.FIRST_EXCEPTION)
        for call in done:
            failure = call.exception()
            if failure is not None and not (loses and isinstance(failure, _FORGIVEN)):
                raise failure
            if failure is not None:
                missing[calls[call]] = failure
        if not done:
            late = DeadlineExceeded("it did not answer in time", request_id=scope.id)
            if not loses:
                raise late
            missing |= dict.fromkeys((calls[call] for call in running), late)
            break
    return missing


async def _ended(calls: Mapping[asyncio.Task[Answer], int]) -> None:
    """Cancels what still runs, and waits for it."""
    running = [call for call in calls if not call.done()]
    for call in running:
        call.cancel()
    if running:
        await asyncio.wait(running)
    for call in calls:
        if not call.cancelled():
            call.exception()  # looked at: one was raised, the others are its followers


def _merged(merge: Callable[[list[Any]], Any], answers: list[Answer]) -> Answer:
    """In shard order, with the times of the slowest."""
    slowest = max(answers, key=lambda a: a.queued_s + a.served_s, default=None)
    merged = merge([answer.value for answer in answers])
    return Answer(merged, 0.0, 0.0) if slowest is None else Answer(merged, slowest.queued_s, slowest.served_s)
