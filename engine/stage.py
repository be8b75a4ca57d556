"""A stage: state that heavy steps share (weights, an index), and where it lives."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Coroutine, Mapping
from typing import Any, Concatenate, Generic, ParamSpec, TypeVar, overload

import msgspec

from engine.edges import identity_of
from engine.errors import GraphError
from engine.method import Method, describe
from engine.policy import ONCE, Policy
from engine.step import Kind, Placement, Step
from engine.stream import Stream

S = TypeVar("S")
P = ParamSpec("P")
R = TypeVar("R")


class Resources(msgspec.Struct, frozen=True, kw_only=True):
    """What one replica of a stage holds while it lives; read by Ray, ignored in one process."""

    cpus: float = 0.25
    gpus: float = 0.0
    custom: dict[str, float] = msgspec.field(default_factory=dict)


class Scaling(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Between how many replicas a shard has, and when it gets another; obeyed where Ray Serve runs the stage.

    Args:
        least: Replicas that are always there, 1 or more.
        most: Replicas that there may be.
        queued_s: Seconds of work that may wait at a replica before there is another.
        up_after_s: For how long more must be wanted, in seconds.
        down_after_s: For how long fewer must be wanted, in seconds.

    Raises:
        GraphError: A number is out of its range.
    """

    least: int = 1
    most: int = 1
    queued_s: float = 2.0
    up_after_s: float = 5.0
    down_after_s: float = 120.0

    def __post_init__(self) -> None:
        if not 1 <= self.least <= self.most:
            raise GraphError(f"scaling is from {self.least} to {self.most} replicas; expected 1 <= least <= most")
        for name in ("queued_s", "up_after_s", "down_after_s"):
            if not getattr(self, name) > 0:
                raise GraphError(f"scaling's {name} is {getattr(self, name)!r}; expected seconds above 0")


class Stage(Generic[S]):
    """State that heavy steps share, and where it lives.

    Defining a stage runs nothing: `open` is called when a graph that uses it is started, in this process, in a child
    process or in a Ray actor. The object that it returns has the methods that become steps, and may have an
    `async def aclose()`.

    Args:
        name: As it appears in pictures, metrics and errors.
        open: Makes the state; takes the shard's index when the stage is sharded. It and what it makes must pickle
            (the callable, not the state) to live anywhere but in this process.
        resources: What one replica holds.
        shards: Number of partitions of the state; None for a stage that has none.
        replicas: Copies of each shard; a call goes to the one with the fewest calls outstanding.
        isolated: With the local engine, give it a process of its own (a JVM that must not share one with torch).
        environment: Environment variables for its process or actor.
        scaling: How the number of replicas follows the load; `replicas` is then where it begins. None keeps it.

    Example:
        >>> class Counter:
        ...     async def add(self, n: int) -> int:
        ...         return n + 1
        >>> counting = Stage("counting", Counter)
        >>> counting.step(Counter.add)
        <step add: (n: int) -> int, on counting>
    """

    def __init__(
        self,
        name: str,
        open: Callable[..., S],
        *,
        resources: Resources | None = None,
        shards: int | None = None,
        replicas: int = 1,
        isolated: bool = False,
        environment: Mapping[str, str] | None = None,
        scaling: Scaling | None = None,
    ) -> None:
        for what, value in (("shards", 1 if shards is None else shards), ("replicas", replicas)):
            if value < 1:
                raise GraphError(f"stage {name!r}: {what} is {value}, expected 1 or more")
        self.name = name
        self.open = open
        self.resources = resources or Resources()
        self.shards = shards
        self.replicas = replicas if scaling is None else min(scaling.most, max(scaling.least, replicas))
        self.isolated = isolated
        self.environment = dict(environment or {})
        self.scaling = scaling
        self.methods: dict[str, Method] = {}  # those that steps use, with their types, for the far side of a hop

    @overload
    def step(
        self,
        method: Callable[Concatenate[S, P], AsyncIterator[R]],
        *,
        name: str | None = None,
        live: bool = False,
        policy: Policy = ONCE,
    ) -> Step[P, Stream[R]]: ...
    @overload
    def step(
        self,
        method: Callable[Concatenate[S, P], Coroutine[Any, Any, R]],
        *,
        name: str | None = None,
        policy: Policy = ONCE,
    ) -> Step[P, R]: ...
    def step(
        self, method: Callable[..., Any], *, name: str | None = None, live: bool = False, policy: Policy = ONCE
    ) -> Step[Any, Any]:
        """The step that runs `method` on this stage's state.

        Args:
            method: An `async def` of the state's class: a coroutine, or a generator for a stream.
            name: The step's name; the method's own when absent.
            live: For a stream: its producer cannot pause (it shares an engine with other requests), so its items are
                kept until they are pulled, and it is stopped when nobody pulls.
            policy: What to do when a replica is slow or dead. Of a stream only whether it may be run twice counts: if
                so, it begins anew on a sibling when its producer dies before the first item.

        Raises:
            GraphError: The method is not async, or takes arguments that cannot cross a hop.
        """
        return self._taking(
            Step(method, name=name or method.__name__, placement=Placement(self, live=live, policy=policy))
        )

    def gather(
        self,
        method: Callable[Concatenate[S, P], Coroutine[Any, Any, R]],
        merge: Callable[[list[R]], R],
        *,
        split: Callable[Concatenate[int, P], list[tuple[Any, ...] | None]] | None = None,
        name: str | None = None,
        policy: Policy = ONCE,
    ) -> Step[P, R]:
        """The step that runs `method` on every shard at once and merges the answers in shard order.

        Args:
            method: As for `step`, not a stream.
            merge: Makes one answer of one a shard; not called when there is one shard only. Must not depend on
                arrival order.
            split: Gives each shard arguments of its own: called with the number of shards and the step's inputs, it
                returns one tuple a shard, or None for a shard that need not be asked. Without it every shard gets the
                step's inputs.
            name: The step's name; the method's own when absent.
            policy: What to do when a shard is slow or dead. With one that loses shards, `merge` gets the answers of
                the others, and the request's scope says which are missing.
        """
        placement = Placement(self, merge=merge, split=split, policy=policy)
        step: Step[P, R] = Step(method, name=name or method.__name__, placement=placement)
        if step.kind is Kind.STREAM:
            raise GraphError(f"step {step.name!r}: a stream cannot be gathered from shards", step=step.name)
        return self._taking(step)

    def _taking(self, step: Step[P, R]) -> Step[P, R]:
        step.refuse_unless_a_method()
        method = describe(step.fn)
        self.methods[method.name] = method
        return step

    def describe(self) -> str:
        """One line for explain() and the graph's hash."""
        where = [f"{self.resources.cpus:g} CPU"]
        if self.resources.gpus:
            where.append(f"{self.resources.gpus:g} GPU")
        where += [f"{amount:g} {key}" for key, amount in sorted(self.resources.custom.items())]
        if self.shards is not None:
            where.append(f"{self.shards} shard{'s' if self.shards > 1 else ''}")
        if self.scaling is None or self.scaling.least == self.scaling.most:
            where += [f"{self.replicas} replicas"] if self.replicas > 1 else []
        else:
            where.append(f"{self.scaling.least} to {self.scaling.most} replicas")
        if self.isolated:
            where.append("own process")
        return ", ".join(where)

    def opener(self) -> str:
        """How the state is made, for the graph's hash."""
        return identity_of(self.open)

    def __repr__(self) -> str:
        return f"<stage {self.name}: {self.describe()}>"
