"""Shared parts of a run's steps: settings, context, clock, progress, redaction.

Every room of the steps may import it.
"""
