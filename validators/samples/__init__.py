"""Samples and labels: data files checked against a model's inputs, statistics, splits."""
