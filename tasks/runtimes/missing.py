"""Reason why a runtime cannot be used on this machine."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Missing:
    """Reason why a provider cannot be used here, and the fix."""

    found: str
    expected: str
    fix: str
