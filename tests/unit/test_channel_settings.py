"""A channel's limits: declared, and set otherwise by a deployment."""

import json

import pytest
from pydantic import ValidationError

from bulklane.contracts.limit import Limits
from bulklane.operations.channel import ChannelSettings

URL = "http://provider"


def test_what_the_settings_say_goes_over_what_the_channel_declares() -> None:
    settings = ChannelSettings.model_validate_strings(
        {"url": URL, "rate": "9.5", "tenant_concurrency": "3", "shared_account": "true"}
    )
    limits = settings.limits_over(Limits(rate=100, burst=7, concurrency=5))
    assert limits == Limits(rate=9.5, burst=7, concurrency=5, tenant_concurrency=3, shared_account=True)
    assert ChannelSettings(url=URL).limits_over(limits) is not None
    assert not ChannelSettings(url=URL).limits_over(Limits()).any


@pytest.mark.parametrize(("name", "value"), [("rate", "0"), ("rate", "fast"), ("burst", "0"), ("concurrency", "-3")])
def test_a_setting_that_makes_no_sense_is_named(name: str, value: str) -> None:
    with pytest.raises(ValidationError, match=name):
        ChannelSettings.model_validate_strings({"url": URL, name: value})


def test_weights_are_a_json_object_and_positive() -> None:
    settings = ChannelSettings.model_validate_json(json.dumps({"url": URL, "tenant_weights": {"acme": 3}}))
    limits = settings.limits_over(Limits())
    assert (limits.weight("acme"), limits.weight("other")) == (3, 1)
    with pytest.raises(ValueError, match="tenant_weights"):
        ChannelSettings(url=URL, tenant_weights={"acme": 0}).limits_over(Limits())
