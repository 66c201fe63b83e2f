"""The GPU check, which `make gpu-check` runs on a machine with an NVIDIA GPU: docs/gpu.md. Nothing of quantgate imports it."""
