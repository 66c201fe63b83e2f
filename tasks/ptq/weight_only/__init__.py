"""INT4 weight-only: grids, rounding methods, both file formats."""
