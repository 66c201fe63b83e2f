"""mAP against pycocotools on random detections, outputs of every form, and matches worked out by hand."""

from __future__ import annotations

import contextlib
import io
import math
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from pycocotools.coco import COCO
from pycocotools.cocoeval import COCOeval
from random_boxes import random_case

from tasks.measure.metrics.detection import MOST, join_detections, mean_average_precision
from validators.errors import DataError, JobError
from validators.samples.datasets import TensorSpec
from validators.samples.labels import LabelSpec, check_labels

Array = NDArray[Any]
MAP, MAP50 = mean_average_precision("map"), mean_average_precision("map50")
FLOATS = TensorSpec("boxes", "float32", ("n", None, 4))


def coco(found: Array, true: Array) -> tuple[float, float]:
    """mAP at 0.5 to 0.95 and at 0.5, by pycocotools; boxes are corner and size there."""
    truth, answers = [], []
    for image, (boxes, detections) in enumerate(zip(true, found, strict=True)):
        for x1, y1, x2, y2, label in boxes[~np.isnan(boxes[:, 0])].tolist():
            box = {"bbox": [x1, y1, x2 - x1, y2 - y1], "area": (x2 - x1) * (y2 - y1), "iscrowd": 0}
            truth.append({"id": len(truth) + 1, "image_id": image, "category_id": int(label)} | box)
        for x1, y1, x2, y2, score, label in detections[detections[:, 5] >= 0].tolist():
            box = {"image_id": image, "category_id": int(label), "bbox": [x1, y1, x2 - x1, y2 - y1], "score": score}
            answers.append(box)
    images = [{"id": image} for image in range(len(true))]
    with contextlib.redirect_stdout(io.StringIO()):
        data = COCO()
        data.dataset = {"images": images, "annotations": truth, "categories": [{"id": one} for one in range(5)]}
        data.createIndex()
        judged = COCOeval(data, data.loadRes(answers), "bbox")
        judged.evaluate()
        judged.accumulate()
        judged.summarize()
    return float(judged.stats[0]), float(judged.stats[1])


@pytest.mark.parametrize("m", [3, 12, 150])
def test_values_are_those_of_pycocotools(m: int) -> None:
    """Of all images, and of some; of 150 detections of one class it takes 100."""
    for seed in range(100 if m < 100 else 10):
        rng = np.random.default_rng(seed)
        found, true = random_case(rng, 12, 5, m)
        if m > 100:
            found[..., 5] = np.where(found[..., 5] >= 0, 0, -1)
        part = np.sort(rng.permutation(12)[:7])
        for which in (np.arange(12), part):
            for place, metric in enumerate((MAP, MAP50)):
                value = metric.value(metric.rows(found, true, None)[which])
                expected = coco(found[which], true[which])[place]
                if expected == -1:  # no true box among the images
                    assert math.isnan(value)
                else:
                    assert value == pytest.approx(expected, abs=1e-9), (seed, metric.name)


def test_a_match_by_hand() -> None:
    """Two true boxes; the better detection overlaps by 0.8, the second is the same box again, the third misses."""
    true = np.array([[[0.0, 0, 10, 10, 0], [50, 50, 60, 60, 0]]])
    found = np.array([[[0.0, 0, 10, 8, 0.9, 0], [0, 0, 10, 10, 0.8, 0], [80, 80, 90, 90, 0.7, 0]]])
    # At 0.5 the first is right and the second a repeat: precision 1 up to recall 0.5, which are 51 of 101 recalls.
    assert MAP50.value(MAP50.rows(found, true, None)) == pytest.approx(51 / 101)
    # At 0.5 to 0.8 that, above it the second is right: precision 1/2.
    expected = (7 * 51 + 3 * 51 / 2) / 1010
    assert MAP.value(MAP.rows(found, true, None)) == pytest.approx(expected)


def test_every_form_of_outputs_gives_the_same_detections() -> None:
    rng = np.random.default_rng(2)
    n, m = 3, 4
    found, true = random_case(rng, n, 5, m)
    found[..., 5] = rng.integers(0, 3, (n, m))
    boxes, scores, labels = found[..., :4], found[..., 4], found[..., 5]
    expected = MAP.value(MAP.rows(found, true, None))
    by_class = np.where(np.arange(3) == labels[..., None], scores[..., None], -1.0)
    sample, place = (grid.reshape(-1) for grid in np.mgrid[:n, :m])
    rows = np.column_stack([sample, boxes.reshape(-1, 4), labels.reshape(-1), scores.reshape(-1)])
    chosen = np.column_stack([sample, labels.reshape(-1), place]).astype(np.int64)
    forms: list[list[Array]] = [
        [found],
        [rows[rng.permutation(len(rows))]],
        [boxes, scores, labels],
        [boxes, scores[..., None], labels.astype(np.int64)],
        [boxes, by_class],
        [boxes, by_class.transpose(0, 2, 1), chosen],
    ]
    for form in forms:
        joined = join_detections(form, n)
        assert joined.shape == (n, MOST, 6) and np.isfinite(joined).all()
        assert MAP.value(MAP.rows(joined, true, None)) == pytest.approx(expected)
    alone = [join_detections([boxes[one], scores[one], labels[one]], 1) for one in range(n)]
    assert MAP.value(MAP.rows(np.concatenate(alone), true, None)) == pytest.approx(expected)


@pytest.mark.parametrize(
    "shapes",
    [
        [(6, 4), (6,), (6,)],
        [(3, 4, 4), (3, 5), (3, 5)],
        [(3, 4, 4)],
        [(4, 4, 4), (4, 4), (4, 4)],
        [(3, 4, 4), (3, 5, 2)],
    ],
)
def test_outputs_of_another_form_are_refused(shapes: list[tuple[int, ...]]) -> None:
    with pytest.raises(JobError, match="for 3 samples") as caught:
        join_detections([np.zeros(shape) for shape in shapes], 3)
    assert "[boxes (n, m, 4), scores (n, m), labels (n, m)]" in caught.value.expected


def test_many_detections_are_cut_to_the_best() -> None:
    rng = np.random.default_rng(4)
    rows = np.column_stack([np.zeros(500), rng.random((500, 4)), np.arange(500) % 7, rng.random(500)])
    joined = join_detections([rows], 2)
    assert joined.shape == (2, MOST, 6)
    np.testing.assert_array_equal(joined[0, :, 4], np.sort(rows[:, 6])[::-1][:MOST])
    assert (joined[1] == -1).all()


BOX = [1.0, 1, 5, 5, 0]


@pytest.mark.parametrize(
    ("labels", "words"),
    [
        (np.zeros((2, 3, 4)), "floats of shape (samples, boxes, 5)"),
        (np.zeros((2, 3, 5), int), "floats of shape (samples, boxes, 5)"),
        (np.array([[[1.0, 1, 5, math.nan, 0]]]), "some values NaN"),
        (np.full((2, 3, 5), math.nan), "no box"),
        (np.array([[BOX, [10.0, 10, 5, 5, 0]]]), "corners rather than"),
        (np.array([[BOX, [1.0, 1, 5, 5, -1]]]), "a whole class from 0"),
        (np.array([[BOX, [1.0, 1, 5, 5, 0.5]]]), "a whole class from 0"),
    ],
)
def test_labels_that_are_no_boxes_are_refused(labels: Array, words: str) -> None:
    spec = MAP.expects(FLOATS, (8, 3, 6))
    assert spec == LabelSpec("boxes")
    with pytest.raises(DataError) as caught:
        check_labels(labels, spec, data="e.npz", label="label", metric="map")
    error = caught.value
    assert words in " ".join([error.found, error.expected, error.fix])
    check_labels(np.array([[BOX, [math.nan] * 5]]), spec, data="e.npz", label="label", metric="map")
