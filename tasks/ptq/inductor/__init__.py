"""Exported PyTorch programs, quantized and compiled by TorchInductor for the processor, in a process of their own.

Imports from `tasks.runtimes`; imported by the target `torch-inductor`.
"""
