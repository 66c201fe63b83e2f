"""Metrics and everything that is computed from the answers of a model."""
