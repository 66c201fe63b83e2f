"""Accuracy, latency, memory, inventory. Pure: neither prefect nor mlflow."""
