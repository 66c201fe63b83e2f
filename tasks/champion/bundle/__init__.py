"""Evidence bundles: one file per run with all that its verdicts rest on, sealed, and verified without a server.

Imports from `tasks.trials`, `tasks.measure` and `validators`; imported by `tasks.champion` and by flows. `python -m
tasks.champion.bundle` verifies one, and needs few packages.
"""
