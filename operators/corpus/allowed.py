"""The chunks that a question may find, as keys."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np


@dataclass(frozen=True)
class Allowed:
    """The keys that a filter lets through, int64[A] ascending."""

    keys: np.ndarray

    def among(self, keys: np.ndarray) -> np.ndarray:
        """Which of those keys, int64[N], are let through: bool[N].

        >>> Allowed(np.array([2, 5, 9])).among(np.array([9, 3, 2, 10]))
        array([ True, False,  True, False])
        """
        if not len(self.keys):
            return np.zeros(len(keys), bool)
        places = np.searchsorted(self.keys, keys)
        return np.asarray(self.keys[np.minimum(places, len(self.keys) - 1)] == keys)
