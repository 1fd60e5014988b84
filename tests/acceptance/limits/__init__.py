"""Limits, holds and kills of deliveries, with several worker processes of one channel and real providers."""
