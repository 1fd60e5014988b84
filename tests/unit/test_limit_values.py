"""A channel's limits: what no share could be counted with is refused where it is declared."""

import math
from typing import Any

import pytest

from bulklane.contracts.limit import Limits


@pytest.mark.parametrize("name", ["rate", "burst", "concurrency", "tenant_rate", "tenant_burst", "tenant_concurrency"])
@pytest.mark.parametrize("value", [0, -1, math.nan, math.inf])
def test_no_limit_is_zero_endless_or_no_number(name: str, value: float) -> None:
    limit: dict[str, Any] = {name: value}
    with pytest.raises(ValueError, match=f"^{name} is "):
        Limits(**limit)


@pytest.mark.parametrize("name", ["burst", "concurrency", "tenant_burst", "tenant_concurrency"])
def test_half_a_call_would_never_be_made(name: str) -> None:
    limit: dict[str, Any] = {name: 0.5}
    with pytest.raises(ValueError, match="at least 1"):
        Limits(**limit)


@pytest.mark.parametrize("weight", [0, -1, math.nan, math.inf, 1e-320])
def test_no_weight_is_zero_endless_or_nearly_so(weight: float) -> None:
    with pytest.raises(ValueError, match="tenant_weights gives 'acme'"):
        Limits(rate=1, tenant_weights={"acme": weight})
