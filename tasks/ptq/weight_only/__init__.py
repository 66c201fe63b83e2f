"""INT4 weight-only quantization: grids, rounding methods, both file formats."""
