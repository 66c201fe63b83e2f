"""Samples and labels: data files against the inputs of a model, statistics, splits."""
