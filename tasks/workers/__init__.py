"""Workers: dispatch of steps to the workers of a target, and the pools and deployments on the Prefect server.

Imported by flows.
"""
