"""Metrics, and other figures computed from the outputs of a model."""
