"""Latency of a variant beside its baseline, and what disturbs it."""
