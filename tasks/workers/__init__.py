"""Work handed to the workers of a target, and what these make on the Prefect server.

Imported by flows.
"""
