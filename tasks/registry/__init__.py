"""MLflow: one way to connect, and the names of what quantgate keeps there.

Every room of the steps may import it.
"""
