"""Whether calibration data is good evidence; judged with Great Expectations."""
