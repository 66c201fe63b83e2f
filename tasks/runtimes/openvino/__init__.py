"""OpenVINO's own runtime: models opened and run with exactly the requested settings, and coverage read from what it executes.

Imports from `tasks.runtimes`; imported by it through the row of the provider, and by the measuring process.
"""
