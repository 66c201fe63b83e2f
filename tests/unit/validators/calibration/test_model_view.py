"""Which samples are worth running through the model."""

from __future__ import annotations

import numpy as np

from validators.calibration.model_view import Embeddings, draw_rows, usable_rows


def test_copies_and_nonfinite_samples_are_not_worth_running() -> None:
    x = np.arange(24, dtype=np.float32).reshape(6, 4)
    x[1], x[3, 2], x[5, 0] = x[0], np.nan, np.inf
    ids = np.array([[1], [1], [2], [3], [4], [5]])
    assert usable_rows({"x": x, "ids": ids}).tolist() == [True, False, True, False, True, False]
    ids[1] = 9  # the same in one input alone is no copy
    assert usable_rows({"x": x, "ids": ids}).tolist() == [True, True, True, False, True, False]
    assert usable_rows({"ids": np.array([[3], [3], [3]])}).tolist() == [True, False, False]


def test_rows_are_drawn_from_all_usable_ones_alike() -> None:
    usable = np.ones(50, bool)
    usable[::5] = False
    counts = np.zeros(50)
    for seed in range(400):
        rows = draw_rows(usable, 10, 1, seed)
        assert len(rows) == 10 and (np.diff(rows) > 0).all() and usable[rows].all()
        counts[rows] += 1
    assert counts[usable].min() > 60 and counts[usable].max() < 140  # 100 on average, standard deviation 8.7
    assert draw_rows(usable, 10, 1, 3).tolist() == draw_rows(usable, 10, 1, 3).tolist()
    assert draw_rows(usable, 99, 1, 3).tolist() == np.flatnonzero(usable).tolist()


def test_rows_come_in_whole_batches() -> None:
    assert len(draw_rows(np.ones(50, bool), 30, 8, 0)) == 24
    assert len(draw_rows(np.ones(7, bool), 30, 8, 0)) == 0


def test_nonfinite_embeddings_are_left_out_with_their_rows() -> None:
    vectors = np.array([[1, 2], [np.nan, 1], [3, np.inf], [4, 5]], np.float32)
    kept = Embeddings(vectors, np.array([2, 5, 6, 9])).finite()
    assert kept.rows.tolist() == [2, 9] and kept.vectors.tolist() == [[1, 2], [4, 5]] and len(kept) == 2
