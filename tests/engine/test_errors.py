"""engine/errors.py: the tree as drawn, and what survives a hop."""

from __future__ import annotations

import copy
import pickle
import re

import pytest

from engine import errors
from engine.errors import HeadraceError, Incomplete, InvalidInput, QueueFull, StepFailed


def tree(root: type[HeadraceError]) -> list[type[HeadraceError]]:
    """The class and all below it that engine/errors.py defines, as drawn: depth first."""
    below = [kind for kind in root.__subclasses__() if kind.__module__ == errors.__name__]
    return [root, *(found for kind in below for found in tree(kind))]


ALL = tree(HeadraceError)


def one(kind: type[HeadraceError]) -> HeadraceError:
    """An error of that class with every field filled in."""
    if issubclass(kind, StepFailed):
        return kind("embed", kind="builtins.ValueError", text="no", traceback="Traceback ...", request_id="r1")
    if issubclass(kind, QueueFull):
        return kind("the queue is full", retry_after_s=1.5).placed("embed", "r1")
    if issubclass(kind, Incomplete):
        return kind("shard 3 did not answer", shards=(3,), coverage=0.875).placed("embed", "r1")
    return kind("what, where, what to do", step="embed", request_id="r1")


@pytest.mark.parametrize("kind", ALL, ids=lambda kind: kind.__name__)
def test_every_error_survives_pickling(kind: type[HeadraceError]):
    error = one(kind)
    error.add_note("seen on shard 3")
    again = pickle.loads(pickle.dumps(error))
    assert type(again) is kind
    assert str(again) == str(error)
    assert vars(again) == vars(error)
    assert (again.step, again.request_id, again.__notes__) == ("embed", "r1", ["seen on shard 3"])


@pytest.mark.parametrize("kind", ALL, ids=lambda kind: kind.__name__)
def test_a_copy_of_an_error_does_not_share_its_place(kind: type[HeadraceError]):
    error = one(kind)
    copy.copy(error).request_id = "r2"
    assert error.request_id == "r1"


def test_every_error_is_documented_and_drawn_in_the_modules_docstring_in_its_place():
    drawn = re.findall(r"^ *(?:│   )* *(?:[├└]── )?([A-Z]\w+)  ", errors.__doc__, flags=re.MULTILINE)
    assert drawn == [kind.__name__ for kind in ALL]
    assert all(kind.__doc__ for kind in ALL)


def test_the_place_of_an_error_is_filled_in_once():
    error = HeadraceError("x").placed("embed", None)
    assert error.placed("rerank", "r1") is error
    assert (error.step, error.request_id) == ("embed", "r1")


def test_a_user_mistake_is_also_a_value_error():
    with pytest.raises(ValueError, match="limit is 0"):
        raise InvalidInput("limit is 0: give at least 1")


def test_a_failed_step_says_which_and_why():
    error = StepFailed("embed", kind="builtins.MemoryError", text="out of memory")
    assert str(error) == "step 'embed' failed: builtins.MemoryError: out of memory"
