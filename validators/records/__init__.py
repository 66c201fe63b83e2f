"""Frozen records that stages pass to one another. Change one with `dataclasses.replace`.

Imports `validators/job` and below.
"""
