"""Packages that TorchInductor compiled for the processor: opened as runners, and coverage read from the kernels that run.

Imports from `tasks.runtimes`; imported by it through the row of the provider, by the measuring process and by the compiler.
"""
