"""Check of a version's evidence where it is loaded; MLflow copies this package beside the consumer.

It imports the standard library alone and, when it checks a signature, cryptography; nothing of quantgate.
"""
