"""engine/batch.py: what fits into a batch and is worth its padding."""

from __future__ import annotations

import msgspec
import pytest

from engine.batch import Batch, BatchLimits, Request
from engine.errors import InvalidInput
from engine.scope import Scope


def request_of(*costs: int) -> Request[str]:
    return Request(
        items=[f"item {number}" for number in range(len(costs))],
        costs=list(costs),
        order=list(range(len(costs))),
        scope=Scope(),
        priority=0,
        entered=0.0,
        deadline=float("inf"),
        arrival=0,
        first_round=0,
        queued_cost=sum(costs),
        unserved=len(costs),
        results=[None] * len(costs),
    )


def batch_of(*costs: int, limits: BatchLimits) -> Batch[str]:
    batch: Batch[str] = Batch(limits)
    request = request_of(*costs)
    for index in range(len(costs)):
        batch.add(request, index)
    return batch


def test_an_empty_batch_costs_nothing_and_is_not_full():
    batch = batch_of(limits=BatchLimits(max_cost=1, max_items=1))
    assert (batch.padded_cost, batch.requests, batch.full) == (0, [], False)


def test_the_padded_cost_is_the_largest_cost_times_the_number_of_items():
    assert batch_of(3, 7, 5, limits=BatchLimits(max_cost=100)).padded_cost == 21


def test_an_item_joins_only_while_the_padded_cost_is_within_the_limit():
    batch = batch_of(10, 10, limits=BatchLimits(max_cost=36))
    assert batch.accepts(12)  # 12 x 3 = 36
    assert not batch.accepts(13)  # 13 x 3 = 39


def test_an_item_joins_only_while_the_number_of_items_is_within_the_limit():
    assert not batch_of(1, 1, limits=BatchLimits(max_cost=100, max_items=2)).accepts(1)


def test_padding_may_take_a_third_of_a_batch():
    batch = batch_of(300, limits=BatchLimits(max_cost=3200))
    assert batch.accepts(100)  # 200 of 600 are padding
    assert not batch.accepts(99)


def test_a_batch_of_a_thirtysecond_of_the_limit_may_be_padded_at_will():
    batch = batch_of(50, limits=BatchLimits(max_cost=3200))
    assert batch.accepts(1)  # 49 of 100 are padding, and 100 of 3200 are allowed


def test_an_item_above_the_limit_is_accepted_first_and_fills_the_batch():
    limits = BatchLimits(max_cost=10)
    assert batch_of(limits=limits).accepts(11)
    alone = batch_of(11, limits=limits)
    assert alone.full
    assert not alone.accepts(1)


def test_a_batch_is_full_when_not_even_the_smallest_item_fits():
    limits = BatchLimits(max_cost=12)
    assert not batch_of(4, 4, limits=limits).full
    assert batch_of(5, 5, limits=limits).full


def test_a_batch_names_each_of_its_requests_once():
    batch: Batch[str] = Batch(BatchLimits(max_cost=100))
    first, second = request_of(1, 1), request_of(1)
    for request, index in ((first, 0), (second, 0), (first, 1)):
        batch.add(request, index)
    assert batch.requests == [first, second]
    assert batch.items == ["item 0", "item 0", "item 1"]


@pytest.mark.parametrize("name", ["max_cost", "max_items", "micro_chunk", "max_queued_cost"])
def test_limits_below_one_are_refused_by_name(name: str):
    with pytest.raises(InvalidInput, match=f"batch limit {name} is 0: give a whole number of at least 1"):
        BatchLimits(**{"max_cost": 8, name: 0})


def test_limits_that_are_no_whole_numbers_are_refused():
    with pytest.raises(InvalidInput, match=r"max_cost is 2\.5"):
        BatchLimits(max_cost=2.5)  # type: ignore[arg-type] # the mistake under test


def test_unknown_limits_in_a_configuration_are_refused():
    with pytest.raises(msgspec.ValidationError, match="max_batch"):
        msgspec.convert({"max_cost": 8, "max_batch": 3}, BatchLimits)
