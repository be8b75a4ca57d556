import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from operators.corpus.allowed import Allowed

KEYS = st.lists(st.integers(0, 2**63 - 1) | st.integers(0, 20), max_size=30)


@given(st.sets(st.integers(0, 2**63 - 1) | st.integers(0, 20), max_size=30), KEYS)
def test_among_agrees_with_a_set(allowed, keys):
    found = Allowed(np.array(sorted(allowed), np.int64)).among(np.array(keys, np.int64))
    assert found.tolist() == [key in allowed for key in keys]
