"""What a sample and past jobs say of the whole: effects that would be owed, and how long it would take."""

from collections.abc import Mapping, Sequence

from bulklane.database.chunk_plan import OwedEffect
from bulklane.database.past_rate import PastRate
from bulklane.database.trial import SampledRecord
from bulklane.operations.channel import Channel, ChannelSettings
from bulklane.starter.preview import EffectForecast, Estimate


def forecast_walk(past: PastRate | None, records: int) -> Estimate:
    """By the rate of past jobs; nothing where there are none."""
    if past is None:
        return Estimate(0, None, None)
    rate = past.records / past.seconds
    return Estimate(past.jobs, rate, records / rate)


def forecast_effects(
    effects: Sequence[OwedEffect],
    sample: Sequence[SampledRecord],
    records: int,
    channels: Mapping[str, Channel],
    settings: Mapping[str, ChannelSettings],
) -> list[EffectForecast]:
    """For each effect of the operation, in its order."""
    return [_forecast(effect, sample, records, channels.get(effect.channel), settings) for effect in effects]


def _forecast(
    effect: OwedEffect,
    sample: Sequence[SampledRecord],
    records: int,
    channel: Channel | None,
    settings: Mapping[str, ChannelSettings],
) -> EffectForecast:
    in_sample = sum(owed.effect == effect.name for record in sample for owed in record.owes)
    in_all = round(records * in_sample / len(sample)) if sample else 0
    rate = None if channel is None else _rate(channel, settings.get(channel.name))
    return EffectForecast(effect.name, effect.channel, in_sample, in_all, None if rate is None else in_all / rate)


def _rate(channel: Channel, over: ChannelSettings | None) -> float | None:
    """Calls a second that one tenant's job may make; an index is written in bulk, so its calls aren't records."""
    if channel.indexes:
        return None
    declared = channel.limits
    rate = declared.rate if over is None or over.rate is None else over.rate
    tenant_rate = declared.tenant_rate if over is None or over.tenant_rate is None else over.tenant_rate
    return min((one for one in (rate, tenant_rate) if one is not None), default=None)
