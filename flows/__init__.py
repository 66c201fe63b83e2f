"""Flows that Prefect runs, and the command line; nothing imports this package."""
