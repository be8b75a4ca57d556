"""The replicas of one started stage: who takes a call, and how answers of shards come together."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Sequence
from typing import Any

from engine.credits import Cost, read
from engine.host import Answer, HostStatistics
from engine.method import describe
from engine.scope import Scope
from engine.stage import Stage
from engine.step import Placement, Step
from engine.transport import Transport


class Replicas:
    """The copies of one shard; a call goes to the copy with the fewest calls outstanding, the first among equals."""

    def __init__(self, transports: Sequence[Transport]) -> None:
        self.transports = tuple(transports)
        self._outstanding = [0] * len(transports)

    def take(self) -> int:
        """Index of the copy for the next call, which counts as outstanding until `give_back`."""
        index = self._outstanding.index(min(self._outstanding))
        self._outstanding[index] += 1
        return index

    def give_back(self, index: int) -> None:
        """The call at copy `index` has ended."""
        self._outstanding[index] -= 1

    @property
    def outstanding(self) -> int:
        """Calls and streams that have not ended."""
        return sum(self._outstanding)


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

        Raises:
            HeadraceError: Of the first shard that failed; the other calls are cancelled.
        """
        placement: Placement = step.placement  # type: ignore[assignment] # only steps of stages come here
        if placement.merge is None or len(self.shards) == 1:
            return await self._one(self.shards[0], step, args, scope)
        # Quorum, hedging and coverage will be decided here: this is where the answers of shards meet.
        calls = [asyncio.ensure_future(self._one(shard, step, own, scope)) for shard, own in self._asked(step, args)]
        try:
            answers = await asyncio.gather(*calls)
        except BaseException:
            for call in calls:
                call.cancel()
            await asyncio.gather(*calls, return_exceptions=True)
            raise
        merged = placement.merge([a.value for a in answers])
        slowest = max(answers, key=lambda a: a.queued_s + a.served_s, default=None)
        return Answer(merged, 0.0, 0.0) if slowest is None else Answer(merged, slowest.queued_s, slowest.served_s)

    def _asked(self, step: Step[Any, Any], args: Sequence[Any]) -> list[tuple[Replicas, Sequence[Any]]]:
        """The shards that a gathered step asks, each with its arguments."""
        if step.placement is None or step.placement.split is None:
            return [(shard, args) for shard in self.shards]
        parts = step.placement.split(len(self.shards), *args)
        return [(shard, part) for shard, part in zip(self.shards, parts, strict=True) if part is not None]

    async def _one(self, shard: Replicas, step: Step[Any, Any], args: Sequence[Any], scope: Scope) -> Answer:
        copy = shard.take()
        try:
            return await shard.transports[copy].call(describe(step.fn), args, scope)
        finally:
            shard.give_back(copy)

    async def stream(
        self, step: Step[Any, Any], args: Sequence[Any], scope: Scope, cost: Cost
    ) -> AsyncGenerator[Any, None]:
        """The items of a step's stream; closing the generator stops its producer."""
        shard = self.shards[0]
        copy = shard.take()
        live = step.placement is not None and step.placement.live
        items = read(shard.transports[copy].link(describe(step.fn), args, scope, live=live), cost=cost)
        try:
            async for item in items:
                yield item
        finally:
            await items.aclose()
            shard.give_back(copy)

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
