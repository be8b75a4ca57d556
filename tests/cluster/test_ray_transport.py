from __future__ import annotations

import asyncio

import pytest
import pytest_asyncio

from engine.errors import InvalidInput, StageDied, StepFailed
from engine.graph import graph
from engine.method import describe
from engine.ray.cluster import open_on_ray
from engine.run import start
from engine.scope import Scope
from engine.stage import Resources, Stage
from engine.stream import Stream
from engine.trace import Trace
from tests.parts import Refuses, Shard, Workshop
from tests.transport_suite import TransportSuite
from tests.until import until

LITTLE = Resources(cpus=0.1)


@pytest.fixture(scope="module")
def shared():
    """A way to one actor, for all tests of the suite: an actor takes seconds to start."""
    loop = asyncio.new_event_loop()  # asyncio.run would take away the loop that pytest-asyncio set
    pool = loop.run_until_complete(open_on_ray(Stage("workshop", Workshop, resources=LITTLE)))
    yield pool.shards[0].transports[0]
    loop.run_until_complete(pool.aclose())
    loop.close()


class TestOnRay(TransportSuite):
    @pytest_asyncio.fixture
    async def transport(self, shared):
        await self.call(shared, "reset")
        yield shared
        await asyncio.gather(*shared._posting)

    async def test_an_actor_that_dies_fails_its_calls_at_once(self):
        pool = await open_on_ray(Stage("workshop", Workshop, resources=LITTLE))
        transport = pool.shards[0].transports[0]
        hanging = asyncio.create_task(self.call(transport, "hang"))
        with pytest.raises(StageDied, match="workshop"):
            await self.call(transport, "die")
        with pytest.raises(StageDied):
            await hanging
        with pytest.raises(StageDied):
            await self.call(transport, "add", 1, 2)
        await pool.aclose()


async def test_the_same_graph_gives_the_same_on_ray_and_locally():
    count = Stage("workshop", Workshop, resources=LITTLE).step(Workshop.count)
    mine = Stage("shards", Shard, shards=3, resources=LITTLE).gather(Shard.mine, lambda parts: sum(parts, []))

    from engine.step import step

    @step
    def total(numbers: list[int]) -> int:
        return sum(numbers)

    @graph
    def counted(offset: int) -> Stream[int]:
        return count(total(mine(offset)))

    answers = {}
    for engine in ("local", "ray"):
        async with start(counted, engine) as running:
            trace = Trace()
            answers[engine] = [i async for i in await running.within(Scope(trace=trace))(5)]
            assert {s.step for s in trace.spans} == {"mine", "total", "count"}
            assert (running.active, running.outstanding) == (0, 0)
    assert answers["local"] == answers["ray"] == list(range(18))


async def test_a_stage_defined_in_a_function_moves_to_an_actor():
    class Homemade:
        async def shout(self, text: str) -> str:
            return text.upper()

    shout = Stage("homemade", Homemade, resources=LITTLE).step(Homemade.shout)

    @graph
    def loud(text: str) -> str:
        return shout(text)

    async with start(loud, "ray") as running:
        assert await running("abc") == "ABC"


async def test_a_state_that_cannot_be_made_tells_why():
    with pytest.raises(StepFailed, match="no weights at /nowhere"):
        await open_on_ray(Stage("bad", Refuses, resources=LITTLE))


async def test_a_stage_that_fits_nowhere_is_refused_at_once():
    with pytest.raises(InvalidInput, match=r"asks for 2 GPU \(the cluster has 0\)"):
        await open_on_ray(Stage("large", Workshop, resources=Resources(gpus=2)))


async def test_calls_go_to_the_replica_with_the_fewest_outstanding():
    pool = await open_on_ray(Stage("workshop", Workshop, replicas=2, resources=LITTLE))
    try:
        hang = Stage("workshop", Workshop).step(Workshop.hang)
        hanging = [asyncio.create_task(pool.call(hang, (), Scope())) for _ in range(4)]

        async def spread() -> bool:
            started = []
            for transport in pool.shards[0].transports:
                answer = await transport.call(describe(Workshop.counters), (), Scope())
                started.append(answer.value["started"])
            return started == [2, 2]

        await until(spread)
        for task in hanging:
            task.cancel()
        await asyncio.wait(hanging)
        assert pool.outstanding == 0
    finally:
        await pool.aclose()
