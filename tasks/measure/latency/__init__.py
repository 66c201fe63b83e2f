"""Latency of a variant beside its baseline, and disturbances of the measurement."""
