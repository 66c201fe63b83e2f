"""Label placement: beside the points, inside the frame, without overlap of labels, points and bars if possible."""

from __future__ import annotations

import math
from dataclasses import dataclass

# Directions from the point to the label, by preference: right, left, then the others.
_DIRECTIONS = ((1, 0), (-1, 0), (1, 1), (1, -1), (-1, 1), (-1, -1), (0, 1), (0, -1), (1, 2), (1, -2), (-1, 2), (-1, -2))
_DISTANCES = (8.0, 16.0, 28.0, 44.0, 64.0, 90.0)
# Cost of a square pixel of overlap; a pixel of distance from the point costs 1.
_ON_LABEL, _ON_OBSTACLE, _OUTSIDE = 12.0, 2.0, 60.0


@dataclass(frozen=True)
class Box:
    """A rectangle in pixels."""

    x0: float
    y0: float
    x1: float
    y1: float

    def overlap(self, other: Box) -> float:
        """Return the area in square pixels that two boxes share.

        >>> Box(0, 0, 4, 4).overlap(Box(2, 3, 9, 9))
        2
        """
        return max(0, min(self.x1, other.x1) - max(self.x0, other.x0)) * max(
            0, min(self.y1, other.y1) - max(self.y0, other.y0)
        )

    @property
    def area(self) -> float:
        """Area in square pixels."""
        return (self.x1 - self.x0) * (self.y1 - self.y0)


def place(
    points: list[tuple[float, float]], sizes: list[tuple[float, float]], obstacles: list[Box], frame: Box
) -> list[Box]:
    """Return a box for the label of each point, placed greedily in the given order.

    All values are in pixels; `sizes` are width and height. If the picture is too full, labels overlap as little as possible.
    """
    placed: list[Box] = []
    for point, size in zip(points, sizes, strict=True):
        options = [(_box(point, size, way, far), far) for far in _DISTANCES for way in _DIRECTIONS]
        best, _ = min(options, key=lambda option: _cost(option[0], option[1], placed, obstacles, frame))
        placed.append(best)
    return placed


def _box(point: tuple[float, float], size: tuple[float, float], way: tuple[int, int], far: float) -> Box:
    length = math.hypot(*way)
    x, y = point[0] + far * way[0] / length, point[1] + far * way[1] / length
    width, height = size
    # Put the nearest edge or corner at the distance; the direction selects which one.
    left = x if way[0] > 0 else x - width if way[0] < 0 else x - width / 2
    bottom = y if way[1] > 0 else y - height if way[1] < 0 else y - height / 2
    return Box(left, bottom, left + width, bottom + height)


def _cost(box: Box, far: float, placed: list[Box], obstacles: list[Box], frame: Box) -> float:
    return (
        far
        + _ON_LABEL * sum(map(box.overlap, placed))
        + _ON_OBSTACLE * sum(map(box.overlap, obstacles))
        + _OUTSIDE * (box.area - box.overlap(frame))
    )
