"""What a step may do when a replica is slow or dead: declared at the step, decided where its calls are made."""

from __future__ import annotations

from typing import Literal

import msgspec

from engine.errors import GraphError


class Policy(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """How the calls of one step are made; the default makes each once, on every shard, and waits for all.

    Args:
        idempotent: A call may be run twice. One whose replica died is then made once more, on a sibling.
        hedged: Share of the calls, 0 to 1, that may be made a second time, on a sibling, because the first takes longer
            than 95 % of the shard's calls do; the quicker answer counts. It needs `idempotent`.
        time: Share of what is left of the request's time, above 0 and up to 1, that the step may take.
        time_s: Seconds that it may take at most; None leaves it to `time`, and to nothing for a request without a
            deadline.
        coverage: Of a gathered step, the share of the data, 0 to 1, whose shards must have answered when the time is
            spent or some have died. 1: all of them.
        below: When fewer have answered: "fail", or "degrade" to what there is. Nothing at all always fails.

    Raises:
        GraphError: A value is out of its range, or one needs another.

    >>> Policy(time=0.4, coverage=0.75).seconds(2.0)
    0.8
    """

    idempotent: bool = False
    hedged: float = 0.0
    time: float = 1.0
    time_s: float | None = None
    coverage: float = 1.0
    below: Literal["fail", "degrade"] = "fail"

    def __post_init__(self) -> None:
        for name, value in (("hedged", self.hedged), ("coverage", self.coverage)):
            if not 0 <= value <= 1:
                raise GraphError(f"a policy's {name} is {value!r}; expected a share from 0 to 1")
        if not 0 < self.time <= 1:
            raise GraphError(f"a policy's time is {self.time!r}; expected a share above 0, up to 1")
        if self.time_s is not None and not self.time_s > 0:
            raise GraphError(f"a policy's time_s is {self.time_s!r}; expected seconds above 0, or None")
        if self.below not in ("fail", "degrade"):
            raise GraphError(f'a policy\'s below is {self.below!r}; expected "fail" or "degrade"')
        if self.hedged and not self.idempotent:
            raise GraphError("a policy hedges calls that may not be run twice; add idempotent=True, or leave it out")

    @property
    def loses(self) -> bool:
        """Whether an answer without some shards will do."""
        return self.coverage < 1 or self.below == "degrade"

    def seconds(self, remaining_s: float | None) -> float | None:
        """What the step may take of the time that a request has left; None for as long as it likes."""
        shares = () if remaining_s is None else (self.time * remaining_s,)
        limits = () if self.time_s is None else (self.time_s,)
        return min((*shares, *limits), default=None)

    def describe(self) -> str:
        """In a few words, for explain() and the graph's hash; empty for the default."""
        words = ["may be run twice"] if self.idempotent else []
        if self.hedged:
            words.append(f"{self.hedged:.0%} hedged")
        if self.time < 1:
            words.append(f"{self.time:.0%} of the time")
        if self.time_s is not None:
            words.append(f"at most {self.time_s * 1e3:g} ms")
        if self.loses:
            words.append(f"{self.coverage:.0%} will do, else {self.below}")
        return ", ".join(words)


ONCE = Policy()
