"""Steps 4 to 7: make, measure, judge, recover and confirm candidates.

Imported by `tasks/workers` and what stands above it.
"""
