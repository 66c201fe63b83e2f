"""The calibration checks: their columns, expectations and texts, and the catalogue.

Only `validators.calibration` imports this package. Nothing here imports Great Expectations.
"""
