"""Frozen records that stages pass to each other. Change one with `dataclasses.replace`.

Imports `validators/job` and below.
"""
