"""INT8 and FP8: static with Q/DQ pairs, dynamic, and what prepares a graph for either."""
