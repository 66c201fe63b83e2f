"""The error of a bundle that fails its verification."""

from __future__ import annotations


class BundleUnsound(Exception):
    """A part of a bundle is missing, damaged, or says something else than the rest."""

    def __init__(self, part: str, reason: str) -> None:
        super().__init__(f"{part}: {reason}")
        self.part, self.reason = part, reason
