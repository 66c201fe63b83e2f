"""Steps 1 to 3: the source, the inventory of the target, the data.

Imported by `tasks/trials` and what stands above it.
"""
