"""MLflow: the connection, and the names of quantgate's entities there.

Every room of the steps may import it.
"""
