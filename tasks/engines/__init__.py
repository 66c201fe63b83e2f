"""Engines: a room each, with everything that one knows about itself, and their catalogue. Pure: neither prefect nor mlflow."""
