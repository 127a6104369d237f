"""Order statistics of the engine in this process, held to the reference and to what they promise."""

from __future__ import annotations

import numpy as np
import pytest
import reference
import sparseagg as sa
from order_rounds import random_order_round
from random_rounds import error_of
from reference import differences


@pytest.mark.parametrize("seed", range(500))
def test_random_round_has_the_bits_of_the_reference(seed):
    print("seed", seed)
    spec, updates, expected = random_order_round(np.random.default_rng([20261127, seed]))
    print(spec)
    error = error_of(lambda: reference.merge(spec, expected, check="int" in spec.tensors[0].dtype))
    if error is not None:
        with pytest.raises(error):
            sa.aggregate(updates, spec)
        return
    assert differences(spec, expected, sa.aggregate(updates, spec)) == []
