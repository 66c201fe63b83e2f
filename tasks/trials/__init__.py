"""Steps 4 to 7: candidates made, measured, judged, recovered, confirmed.

Imported by `tasks/workers` and what stands above it.
"""
