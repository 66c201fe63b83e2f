"""Calibration: statistics of activations, ranges from them, the choice of samples."""
