"""What every transport must do; a subclass says how to reach a Workshop."""

from __future__ import annotations

import asyncio
import random

import numpy as np
import pyarrow as pa
import pytest

from engine.credits import Cost, read
from engine.errors import Cancelled, DeadlineExceeded, HeadraceError, StepFailed
from engine.method import method_of
from engine.scope import Scope
from engine.spans import OpenSpan, SpanBuffer
from engine.transport import LocalTransport
from tests.parts import Pair, Workshop
from tests.until import until


def method(name):
    return method_of(Workshop, name)


class TransportSuite:
    async def call(self, transport, name, *args, scope=None):
        return (await transport.call(method(name), args, scope or Scope())).value

    def stream(self, transport, name, *args, scope=None, live=False, window=512, cost=None):
        return read(transport.link(method(name), args, scope or Scope(), live=live), window=window, cost=cost)

    async def counters(self, transport):
        return await self.call(transport, "counters")

    async def test_a_call_answers_with_its_value_and_its_times(self, transport):
        answer = await transport.call(method("add"), (2, 3), Scope())
        assert answer.value == 5
        assert 0 <= answer.served_s < 1
        assert answer.queued_s == 0

    async def test_structs_arrays_and_tables_arrive_as_they_were(self, transport):
        assert await self.call(transport, "swap", Pair(7, "abc")) == Pair(3, "7")
        numbers = np.arange(6, dtype=np.float32).reshape(2, 3)
        doubled = await self.call(transport, "double", numbers)
        assert doubled.dtype == np.float32
        np.testing.assert_array_equal(doubled, numbers * 2)
        assert await self.call(transport, "rows", pa.table({"a": [1, 2, 3]})) == 3

    async def test_id_and_remaining_time_go_with_the_call(self, transport):
        assert await self.call(transport, "request_id", scope=Scope("abc")) == "abc"
        remaining = await self.call(transport, "remaining_ms", scope=Scope(timeout_s=60))
        assert 50_000 < remaining <= 60_000
        assert await self.call(transport, "remaining_ms") is None

    async def test_a_failure_names_step_request_and_original(self, transport):
        with pytest.raises(StepFailed, match="fail.*ValueError: torn page") as caught:
            await self.call(transport, "fail", "torn page", scope=Scope("r1"))
        assert (caught.value.step, caught.value.request_id, caught.value.kind) == ("fail", "r1", "ValueError")
        assert "torn page" in caught.value.traceback

    async def test_a_deadline_ends_a_hanging_call(self, transport):
        with pytest.raises(DeadlineExceeded):
            await self.call(transport, "hang", scope=Scope(timeout_s=0.05))
        await until(lambda: self.equals(transport, "cancelled", 1))

    async def test_cancelling_the_caller_cancels_the_call(self, transport):
        task = asyncio.create_task(self.call(transport, "hang"))
        await until(lambda: self.equals(transport, "started", 1))
        task.cancel()
        await until(lambda: self.equals(transport, "cancelled", 1))
        assert (await transport.statistics()).running == 0 or isinstance(task.exception(), HeadraceError)

    async def test_work_of_an_ended_request_is_refused(self, transport):
        scope = Scope()
        scope.cancel()
        with pytest.raises(Cancelled):
            await self.call(transport, "add", 1, 1, scope=scope)

    async def equals(self, transport, counter, value):
        return (await self.counters(transport))[counter] == value

    @pytest.mark.parametrize("window", [2, 3, 64, 512])
    @pytest.mark.parametrize("live", [False, True])
    async def test_a_stream_gives_every_item_once_and_in_order(self, transport, window, live):
        items = [i async for i in self.stream(transport, "count", 1000, window=window, live=live)]
        assert items == list(range(1000))
        assert (await transport.statistics()).streams.open == 0

    async def test_an_empty_stream_ends(self, transport):
        assert [i async for i in self.stream(transport, "count", 0)] == []

    async def test_a_stalled_reader_stops_a_pausable_producer_within_its_credits(self, transport):
        items = self.stream(transport, "count", 100_000, window=64)
        assert await anext(items) == 0
        await asyncio.sleep(0.05)
        assert (await self.counters(transport))["made"] <= 64
        await items.aclose()
        await until(lambda: self.equals(transport, "closed", 1))

    async def test_a_live_producer_runs_on(self, transport):
        items = self.stream(transport, "count", 1000, window=64, live=True)
        assert await anext(items) == 0
        await until(lambda: self.equals(transport, "made", 1000))
        assert [i async for i in items] == list(range(1, 1000))

    async def test_closing_a_stream_stops_its_producer(self, transport):
        items = self.stream(transport, "count_slowly", 10_000)
        assert [await anext(items) for _ in range(3)] == [0, 1, 2]
        await items.aclose()
        await until(lambda: self.equals(transport, "closed", 1))
        assert (await transport.statistics()).streams.open == 0

    async def test_cancelling_a_reader_that_waits_for_its_first_item_stops_the_producer(self, transport):
        task = asyncio.create_task(anext(self.stream(transport, "never")))
        await until(lambda: self.equals(transport, "started", 1))
        task.cancel()
        await asyncio.wait([task])
        await until(lambda: self.equals(transport, "closed", 1))
        assert (await transport.statistics()).streams.open == 0

    async def test_a_failing_stream_gives_its_items_first(self, transport):
        got = []
        with pytest.raises(StepFailed, match="the model fell over") as caught:
            async for item in self.stream(transport, "break_after", 3):
                got.append(item)
        assert got == [0, 1, 2]
        assert caught.value.step == "break_after"

    async def test_what_the_far_side_records_is_of_the_callers_trace(self, transport):
        buffer, scope = SpanBuffer(), Scope("r1")
        scope.span = OpenSpan("step", buffer)
        await self.call(transport, "add", 1, 2, scope=scope)
        assert len([i async for i in self.stream(transport, "count", 1000, scope=scope)]) == 1000
        spans = buffer.take()
        far = [] if isinstance(transport, LocalTransport) else ["Workshop.add", "Workshop.count"]
        assert [span.name for span in spans] == far
        assert {(s.trace_id, s.parent_id) for s in spans} <= {(scope.span.context.trace_id, scope.span.context.span_id)}

    async def test_the_producers_own_time_is_told(self, transport):
        cost = Cost()
        assert len([i async for i in self.stream(transport, "count_slowly", 10, cost=cost)]) == 10
        assert cost.served_s >= 0.01

    async def test_many_streams_cancelled_at_random_moments_leave_nothing_behind(self, transport):
        rng = random.Random(5)

        async def one() -> None:
            items = self.stream(transport, "count_slowly", 10_000, window=rng.choice([2, 16, 512]))
            try:
                async with asyncio.timeout(rng.uniform(0, 0.03)):
                    async for _ in items:
                        pass
            except TimeoutError:
                pass
            finally:
                await items.aclose()

        await asyncio.gather(*(one() for _ in range(50)))

        async def nothing_left() -> bool:
            streams = (await transport.statistics()).streams
            return streams.open == 0

        await until(nothing_left)
        counters = await self.counters(transport)
        opened = (await transport.statistics()).streams.opened
        assert counters["closed"] <= opened
