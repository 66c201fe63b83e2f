"""The numbers: calibration, INT8, INT4, FP8, graph rewriting. Pure: neither prefect nor mlflow."""
