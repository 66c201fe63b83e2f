"""Step 8: the champion in the registry: promoted, approved, rolled back, exported.

Imported by `tasks/records`, `tasks/watch` and what stands above them.
"""
