"""Float precisions: float16 made, half precision widened."""
