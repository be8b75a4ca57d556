"""engine/batch_queue.py: who goes first, what is dropped, and that nothing is lost whatever the order of events."""

from __future__ import annotations

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from engine.batch import Batch, BatchLimits, Outcome, Request
from engine.batch_queue import BatchQueue
from engine.clock import VirtualClock
from engine.errors import Cancelled, DeadlineExceeded, QueueFull
from engine.scope import Priority, Scope

UNIT = BatchLimits(max_cost=4, micro_chunk=2)


def queue_of_units(limits: BatchLimits = UNIT) -> BatchQueue[str]:
    return BatchQueue(limits, cost=lambda _: 1, name="q")


def queue_of_lengths(limits: BatchLimits) -> BatchQueue[int]:
    return BatchQueue(limits, cost=int, name="q")


def words(prefix: str, count: int) -> list[str]:
    return [f"{prefix}{number}" for number in range(count)]


def serve(queue: BatchQueue, now: float = 0.0, seconds: float = 1.0) -> list:
    """Run the next batch, each item its own result; returns its items."""
    batch, _ = queue.form(now)
    queue.complete(batch, batch.items, seconds)
    return batch.items


def test_an_empty_queue_forms_an_empty_batch():
    batch, dropped = queue_of_units().form(0.0)
    assert (batch.items, dropped) == ([], [])


def test_a_more_urgent_class_goes_first_whatever_the_deadlines():
    queue = queue_of_units(BatchLimits(max_cost=1))
    clock = VirtualClock()
    queue.admit(["bulk"], Scope(timeout_s=1, priority=Priority.BATCH, clock=clock), 0.0)
    queue.admit(["person"], Scope(timeout_s=60, clock=clock), 0.0)
    assert [serve(queue), serve(queue)] == [["person"], ["bulk"]]


def test_inside_a_class_the_earliest_deadline_goes_first_and_none_goes_last():
    queue = queue_of_units(BatchLimits(max_cost=1))
    clock = VirtualClock()
    for name, timeout_s in (("none", None), ("late", 9), ("early", 3), ("middle", 5)):
        queue.admit([name], Scope(timeout_s=timeout_s, clock=clock), 0.0)
    assert [serve(queue)[0] for _ in range(4)] == ["early", "middle", "late", "none"]


def test_equal_deadlines_go_by_arrival():
    queue = queue_of_units(BatchLimits(max_cost=1))
    for name in ("first", "second", "third"):
        queue.admit([name], Scope(), 0.0)
    assert [serve(queue)[0] for _ in range(3)] == ["first", "second", "third"]


def test_two_large_requests_take_turns_by_micro_chunks():
    queue = queue_of_units(BatchLimits(max_cost=12, micro_chunk=2))
    queue.admit(words("a", 6), Scope(), 0.0)
    queue.admit(words("b", 6), Scope(), 0.0)
    assert serve(queue) == ["a0", "a1", "b0", "b1", "a2", "a3", "b2", "b3", "a4", "a5", "b4", "b5"]


def test_a_turn_that_did_not_fit_goes_on_in_the_next_batch():
    queue = queue_of_units(BatchLimits(max_cost=5, micro_chunk=3))
    queue.admit(words("a", 6), Scope(), 0.0)
    queue.admit(words("b", 6), Scope(), 0.0)
    assert serve(queue) == ["a0", "a1", "a2", "b0", "b1"]
    assert serve(queue) == ["b2", "a3", "a4", "a5", "b3"]


def test_ten_small_requests_pass_the_rest_of_a_request_of_500():
    queue = queue_of_units(BatchLimits(max_cost=32, micro_chunk=16))
    queue.admit(words("large", 500), Scope(), 0.0)
    serve(queue)
    for number in range(10):
        queue.admit([f"small{number}"], Scope(), 0.0)
    batch = serve(queue)
    assert batch[:10] == words("small", 10)
    assert len(batch) == 32  # the large one fills the room


def test_a_large_request_with_the_earliest_deadline_still_takes_turns():
    queue = queue_of_units(BatchLimits(max_cost=4, micro_chunk=2))
    clock = VirtualClock()
    queue.admit(words("a", 8), Scope(timeout_s=1, clock=clock), 0.0)
    queue.admit(["b"], Scope(timeout_s=60, clock=clock), 0.0)
    assert serve(queue) == ["a0", "a1", "b", "a2"]


def test_a_newcomer_joins_the_round_that_is_being_served():
    queue = queue_of_units(BatchLimits(max_cost=4, micro_chunk=2))
    queue.admit(words("a", 20), Scope(), 0.0)
    serve(queue)
    queue.admit(words("b", 20), Scope(), 0.0)
    assert serve(queue) == ["b0", "b1", "a4", "a5"]  # not b's first eight items in a row


def test_items_of_similar_length_go_together_and_results_return_in_order():
    queue = queue_of_lengths(BatchLimits(max_cost=400, micro_chunk=2))
    request = queue.admit([10, 100, 11], Scope(), 0.0)
    assert [serve(queue), serve(queue)] == [[100], [11, 10]]
    assert request.results == [10, 100, 11]


def test_an_item_above_the_limit_runs_alone():
    queue = queue_of_lengths(BatchLimits(max_cost=50))
    queue.admit([10, 60, 10], Scope(), 0.0)
    assert [serve(queue), serve(queue)] == [[60], [10, 10]]


def test_costs_below_one_count_as_one():
    queue = queue_of_lengths(BatchLimits(max_cost=2))
    queue.admit([0, 0, -5], Scope(), 0.0)
    assert [len(serve(queue)), len(serve(queue))] == [2, 1]


def test_who_is_passed_over_is_first_in_the_next_batch():
    queue = queue_of_lengths(BatchLimits(max_cost=400))
    for cost in (20, 300, 21, 22):
        queue.admit([cost], Scope(), 0.0)
    assert [serve(queue), serve(queue)] == [[20, 21, 22], [300]]
    queue.admit([20], Scope(), 0.0)
    queue.admit([300], Scope(), 0.0)
    serve(queue)
    queue.admit([20], Scope(), 0.0)
    assert serve(queue) == [300]


def test_a_request_cancelled_in_its_scope_is_dropped_with_the_reason():
    queue = queue_of_units()
    scope = Scope("r1")
    request = queue.admit(["a"], scope, 0.0)
    queue.admit(["b"], Scope(), 0.0)
    scope.cancel()
    batch, [(dropped, reason)] = queue.form(2.5)
    assert batch.items == ["b"]
    assert dropped is request
    assert isinstance(reason, Cancelled)
    assert reason.request_id == "r1"
    assert str(reason) == "q: the request was cancelled, noticed 2.500 s after it was queued"


def test_a_request_whose_caller_has_gone_is_never_placed():
    queue = queue_of_units()
    request = queue.admit(words("a", 9), Scope(), 0.0)
    serve(queue)
    queue.drop(request, Outcome.CANCELLED)
    queue.drop(request, Outcome.FAILED)  # too late to count
    assert queue.form(0.0)[0].items == []
    assert (queue.statistics().dropped_cancelled, queue.statistics().failed) == (1, 0)
    assert queue.statistics().queued_cost == 0


def test_expired_work_is_dropped_even_when_its_turn_is_far_away():
    queue = queue_of_units(BatchLimits(max_cost=1))
    clock = VirtualClock()
    queue.admit(["urgent"], Scope(), 0.0)
    late = queue.admit(["bulk"], Scope("r2", timeout_s=1, priority=Priority.BATCH, clock=clock), 0.0)
    batch, [(dropped, reason)] = queue.form(1.0)
    assert batch.items == ["urgent"]
    assert dropped is late
    assert isinstance(reason, DeadlineExceeded)
    assert reason.request_id == "r2"


def test_a_deadline_that_passes_while_everything_runs_does_not_discard_the_results():
    queue = queue_of_units()
    request = queue.admit(["a"], Scope(timeout_s=1, clock=VirtualClock()), 0.0)
    batch, _ = queue.form(0.5)
    queue.form(1.5)
    assert queue.complete(batch, ["A"], 1.0) == [request]
    assert request.results == ["A"]


def test_a_batch_that_raises_fails_its_requests_and_drops_what_they_have_queued():
    queue = queue_of_units(BatchLimits(max_cost=3, micro_chunk=2))
    large = queue.admit(words("a", 8), Scope(), 0.0)
    small = queue.admit(["b"], Scope(), 0.0)
    other = queue.admit(["c"], Scope(), 0.0)
    batch, _ = queue.form(0.0)
    assert queue.fail(batch, 1.0) == [large, small]
    assert serve(queue) == ["c"]
    assert [r.outcome for r in (large, small, other)] == [Outcome.FAILED, Outcome.FAILED, Outcome.SERVED]


def test_a_full_queue_says_when_there_will_be_room():
    queue = queue_of_units(BatchLimits(max_cost=10, max_queued_cost=20))
    queue.admit(words("a", 10), Scope(), 0.0)
    serve(queue, seconds=2.0)  # 5 units a second
    queue.admit(words("b", 20), Scope(), 0.0)
    with pytest.raises(
        QueueFull, match=r"5 more cost units do not fit, 20 of 20 are queued; try again in 1\.0 s"
    ) as full:
        queue.admit(words("c", 5), Scope(), 0.0)
    assert full.value.retry_after_s == pytest.approx(1.0)
    assert (queue.statistics().rejected, queue.statistics().submitted) == (1, 2)


def test_before_anything_was_measured_a_refused_caller_is_told_a_second():
    queue = queue_of_units(BatchLimits(max_cost=1, max_queued_cost=1))
    queue.admit(["a"], Scope(), 0.0)
    with pytest.raises(QueueFull) as full:
        queue.admit(["b"], Scope(), 0.0)
    assert full.value.retry_after_s == 1.0


def test_a_request_larger_than_the_queue_is_taken_when_nothing_is_ahead():
    queue = queue_of_units(BatchLimits(max_cost=4, max_queued_cost=4))
    queue.admit(words("a", 9), Scope(), 0.0)
    assert len(serve(queue)) == 4


def test_bulk_work_that_fills_the_queue_does_not_shut_out_people():
    queue = queue_of_units(BatchLimits(max_cost=4, max_queued_cost=8))
    queue.admit(words("bulk", 8), Scope(priority=Priority.BATCH), 0.0)
    with pytest.raises(QueueFull):
        queue.admit(["bulk"], Scope(priority=Priority.BATCH), 0.0)
    queue.admit(["person"], Scope(), 0.0)
    assert serve(queue)[0] == "person"


def test_a_request_counts_the_time_of_each_of_its_batches_once():
    queue = queue_of_units(BatchLimits(max_cost=4, micro_chunk=2))
    request = queue.admit(words("a", 8), Scope(), 0.0)
    serve(queue, seconds=0.25)
    serve(queue, seconds=0.5)
    assert request.served_s == 0.75


def test_statistics_by_hand():
    queue = queue_of_lengths(BatchLimits(max_cost=400))
    queue.admit([10, 8], Scope(), 0.0)
    serve(queue, seconds=2.0)
    queue.admit([5], Scope(), 0.0)
    seen = queue.statistics()
    assert (seen.submitted, seen.served, seen.waiting, seen.batches, seen.items) == (2, 1, 1, 1, 2)
    assert seen.mean_batch_items == 2.0
    assert seen.padding_share == pytest.approx(0.1)  # 2 of 20
    assert seen.cost_per_s == pytest.approx(9.0)
    assert seen.queued_cost == 5


def test_cancelled_requests_do_not_pile_up_behind_urgent_work():
    queue = queue_of_units(BatchLimits(max_cost=1))
    queue.admit(["urgent"], Scope(), 0.0)
    for _ in range(1000):
        queue.drop(queue.admit(["bulk"], Scope(priority=Priority.BATCH, timeout_s=60), 0.0), Outcome.CANCELLED)
    assert len(queue._order._entries) <= 64
    assert len(queue._deadlines._entries) <= 64


LIMITS = BatchLimits(max_cost=60, max_items=7, micro_chunk=3, max_queued_cost=300)


class AnyOrderOfEvents(RuleBasedStateMachine):
    """Whatever happens in whatever order, no item is lost, doubled or run after its end, and the first is served."""

    def __init__(self) -> None:
        super().__init__()
        self.clock = VirtualClock()
        self.queue = queue_of_lengths(LIMITS)
        self.requests: list[Request[int]] = []
        self.items: dict[Request[int], list[int]] = {}
        self.running: Batch[int] | None = None
        self.ran: set[tuple[Request[int], int]] = set()

    def live(self) -> list[Request[int]]:
        return [request for request in self.requests if not request.ended]

    def first_in_order(self) -> Request[int] | None:
        now = self.clock.now()
        worth = [r for r in self.live() if r.queued and not r.scope.cancelled and r.deadline > now]
        return min(
            worth,
            key=lambda r: (r.priority, r.first_round + r.placed // LIMITS.micro_chunk, r.deadline, r.arrival),
            default=None,
        )

    @rule(
        costs=st.lists(st.integers(1, 80), min_size=1, max_size=20),
        priority=st.sampled_from(Priority),
        timeout_s=st.none() | st.floats(0.1, 5),
    )
    def admit(self, costs: list[int], priority: Priority, timeout_s: float | None):
        scope = Scope(timeout_s=timeout_s, priority=priority, clock=self.clock)
        ahead = sum(r.queued_cost for r in self.live() if r.priority <= priority)
        if ahead > 0 and ahead + sum(costs) > LIMITS.max_queued_cost:
            with pytest.raises(QueueFull) as full:
                self.queue.admit(costs, scope, self.clock.now())
            assert full.value.retry_after_s > 0
            return
        request = self.queue.admit(costs, scope, self.clock.now())
        self.requests.append(request)
        self.items[request] = costs

    @precondition(lambda self: self.live())
    @rule(data=st.data(), by_scope=st.booleans())
    def cancel(self, data: st.DataObject, *, by_scope: bool):
        request = data.draw(st.sampled_from(self.live()))
        if by_scope:
            request.scope.cancel()
        else:
            self.queue.drop(request, Outcome.CANCELLED)

    @rule(seconds=st.floats(0.01, 2))
    def time_passes(self, seconds: float):
        self.clock._now += seconds

    @precondition(lambda self: self.running is None)
    @rule()
    def form(self):
        first, now = self.first_in_order(), self.clock.now()
        batch, dropped = self.queue.form(now)
        assert all(r.scope.cancelled or r.deadline <= now for r, _ in dropped)
        assert not any(r.queued and r.deadline <= now for r in self.live())
        if first is None:
            assert not batch.items
            return
        assert batch.owners[0][0] is first
        assert len(batch.items) <= LIMITS.max_items
        assert batch.padded_cost <= LIMITS.max_cost or len(batch.items) == 1
        for request, index in batch.owners:
            assert not request.ended
            assert not request.scope.cancelled
            assert (request, index) not in self.ran
            self.ran.add((request, index))
        self.running = batch

    @precondition(lambda self: self.running is not None)
    @rule(seconds=st.floats(0.001, 1))
    def complete(self, seconds: float):
        batch, self.running = self.running, None
        for request in self.queue.complete(batch, [-item for item in batch.items], seconds):
            assert request.results == [-item for item in self.items[request]]
            assert all((request, index) in self.ran for index in range(len(request.costs)))

    @precondition(lambda self: self.running is not None)
    @rule()
    def fail(self):
        batch, self.running = self.running, None
        for request in self.queue.fail(batch, 0.1):
            assert request.outcome is Outcome.FAILED

    @invariant()
    def the_books_balance(self):
        seen = self.queue.statistics()
        assert seen.waiting == len(self.live())
        assert seen.submitted == len(self.requests)
        assert seen.submitted == (
            seen.served + seen.failed + seen.dropped_cancelled + seen.dropped_expired + seen.waiting
        )
        unplaced = sum(sum(r.costs[index] for index in r.order[r.placed :]) for r in self.live())
        assert seen.queued_cost == unplaced

    def teardown(self):
        if self.running is not None:
            self.complete(0.1)
        while (batch := self.queue.form(self.clock.now())[0]).items:
            self.queue.complete(batch, batch.items, 0.1)
        assert not self.live()


AnyOrderOfEvents.TestCase.settings = settings(max_examples=40, stateful_step_count=30, deadline=None)
TestAnyOrderOfEvents = AnyOrderOfEvents.TestCase
