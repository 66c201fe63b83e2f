"""The service on one machine and its deployments on a Prefect server.

Imported by `flows/cli` alone.
"""
