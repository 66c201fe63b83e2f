"""Exports of packages that TorchInductor compiled: no other program reads them."""

from tasks.serving.exporter import Exporter

EXPORTS: dict[str, Exporter] = {}
