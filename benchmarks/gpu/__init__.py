"""The GPU checks of `make gpu-first` and `make gpu-full`: docs/gpu.md. Nothing of quantgate imports it."""
