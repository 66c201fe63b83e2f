"""Perplexity: losses worked out by hand, what does not count, a gate that tells a worse language model from an equal one."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray
from onnx import TensorProto, helper, numpy_helper
from runs import run_in
from scipy.special import log_softmax

from tasks.measure.inventory import take_inventory
from tasks.measure.metrics.drops import estimate_drop
from tasks.measure.metrics.perplexity import (
    GREEDY_MATCH,
    PERPLEXITY,
    WINDOWS_AT_ONCE,
    match_windows,
    perplexity,
    score_batches,
    score_windows,
    targets_of,
)
from tasks.run.loaded_run import with_inputs
from tasks.trials.measure_accuracy import Reference, measure_accuracy
from validators.errors import DataError, JobError
from validators.gates.accuracy import judge_drop
from validators.job.job_gates import Gates
from validators.job.read_job import parse_job
from validators.records.measurements import Accuracy
from validators.records.run import SessionSettings, Source, Variant
from validators.samples.datasets import TensorSpec, load_samples
from validators.samples.evidence import Evidence
from validators.samples.labels import IGNORED

VOCABULARY, SEQUENCE = 7, 9
INPUT = TensorSpec("input_ids", "int64", ("batch", "sequence"))
MASK = TensorSpec("attention_mask", "int64", ("batch", "sequence"))
LOGITS = TensorSpec("logits", "float32", ("batch", "sequence", VOCABULARY))
SHAPE = (1, SEQUENCE, VOCABULARY)


def test_losses_worked_out_by_hand() -> None:
    """Softmax of (0, ln 3) is (1/4, 3/4); the first token is foretold by nothing, the last logits foretell nothing."""
    even, leaning = [0.0, 0.0], [0.0, math.log(3)]
    logits = np.array([[leaning, even, [np.nan, np.nan]], [even, leaning, [0.0, 0.0]]], np.float32)
    targets = np.array([[0, 1, 0], [1, 0, 0]])
    # -ln(3/4) and -ln(1/2); -ln(1/2) and -ln(1/4).
    expected = [(math.log(4 / 3) + math.log(2)) / 2, (math.log(2) + math.log(4)) / 2]
    np.testing.assert_allclose(score_windows(logits, targets), expected, rtol=1e-7)
    targets[0, 1] = IGNORED
    np.testing.assert_allclose(score_windows(logits, targets), [math.log(2), expected[1]], rtol=1e-7)


def test_a_greedy_match_repeats_every_token_of_the_answer() -> None:
    """The oracle generates: a model that follows each token by one next token, so that its answer to a prompt is known."""
    following = np.array([3, 0, 5, 6, 1, 4, 2])

    def answered(prompt: list[int], count: int) -> list[int]:
        tokens = list(prompt)
        for _ in range(count):
            tokens.append(int(following[tokens[-1]]))
        return tokens[len(prompt) :]

    prompt, answer = [1, 5], answered([1, 5], 4)
    window = np.array([*prompt, *answer, 0, 0])
    targets = np.array([IGNORED] * 2 + answer + [IGNORED] * 2)
    logits = np.eye(VOCABULARY, dtype=np.float32)[following[window]]
    wrong = targets.copy()
    wrong[5] = (wrong[5] + 1) % VOCABULARY
    # The last token of the answer has NaN among its scores, which are those after the token before it.
    broken = logits.copy()
    broken[4, 0] = np.nan
    found = match_windows(np.stack([logits, logits, broken]), np.stack([targets, wrong, targets]))
    assert found.tolist() == [1.0, 0.0, 0.0]
    # Without labels of the answer alone, tokens of the prompt count too; the second does not follow the first.
    assert match_windows(logits[None], window[None]).tolist() == [0.0]


def test_greedy_match_needs_labels_and_is_right_or_wrong() -> None:
    metric = GREEDY_MATCH
    assert metric.is_right_or_wrong and metric.higher_is_better
    assert metric.expects(LOGITS, SHAPE).required and not PERPLEXITY.expects(LOGITS, SHAPE).required
    with pytest.raises(JobError, match="logits of shape"):
        metric.expects(LOGITS, (1, SEQUENCE))


@settings(max_examples=30)
@given(seed=st.integers(0, 2**32 - 1), size=st.sampled_from([1e-3, 1.0, 1e4]), dtype=st.sampled_from(["f2", "f4"]))
def test_losses_are_those_of_a_float64_softmax(seed: int, size: float, dtype: str) -> None:
    rng = np.random.default_rng(seed)
    logits = (rng.normal(size=(3, 5, 6)) * size).astype(dtype)
    targets = rng.integers(0, 6, (3, 5))
    targets[:, 2:][rng.random((3, 3)) < 0.3] = IGNORED
    exact = log_softmax(logits.astype(np.float64), axis=-1)
    for row, loss in enumerate(score_windows(logits, targets)):
        counted = [at for at in range(4) if targets[row, at + 1] != IGNORED]
        expected = -np.mean([exact[row, at, targets[row, at + 1]] for at in counted])
        assert loss == pytest.approx(expected, rel=1e-5, abs=1e-6)


def test_an_infinite_score_has_no_likelihood() -> None:
    """NaN without a warning: no gate lets it pass."""
    logits = np.zeros((2, 3, 4), np.float32)
    logits[0, 1, 2], logits[1, 0, 0] = np.inf, np.nan
    assert np.isnan(score_windows(logits, np.ones((2, 3), np.int64))).all()


def test_perplexity_is_the_geometric_mean() -> None:
    """One certain and one that guesses among four; and a model that is certain of what does not come."""
    assert perplexity(np.log([1.0, 4.0])) == pytest.approx(2.0)
    assert perplexity(np.array([1e6])) == math.inf


# Targets


def saved(folder: Path, **arrays: NDArray[Any]) -> Any:
    """Samples of a file with these arrays; the model reads those that are called as its inputs."""
    np.savez(folder / "evaluation.npz", **arrays)  # type: ignore[arg-type]  # numpy's stub takes no array by name
    inputs = tuple(spec for spec in (INPUT, MASK) if spec.name in arrays)
    return load_samples(folder / "evaluation.npz", inputs, label="label", role="evaluation")


def tokens(n: int, seed: int = 5) -> NDArray[np.int64]:
    return np.random.default_rng(seed).integers(0, VOCABULARY, (n, SEQUENCE))


def test_targets_are_the_tokens_that_are_not_masked(tmp_path: Path) -> None:
    ids, mask = tokens(3), np.ones((3, SEQUENCE), np.int64)
    mask[1, 4:] = 0
    assert targets_of(saved(tmp_path, input_ids=ids), LOGITS, SHAPE).tolist() == ids.tolist()
    masked = targets_of(saved(tmp_path, input_ids=ids, attention_mask=mask), LOGITS, SHAPE)
    assert masked[[0, 2]].tolist() == ids[[0, 2]].tolist() and masked[1, :4].tolist() == ids[1, :4].tolist()
    assert (masked[1, 4:] == IGNORED).all()


def test_labels_come_before_tokens_and_mask(tmp_path: Path) -> None:
    ids, mask, label = tokens(2), np.ones((2, SEQUENCE), np.int64), tokens(2, seed=6).astype(np.int32)
    mask[0, 5], label[1, 3] = 0, IGNORED
    samples = saved(tmp_path, input_ids=ids, attention_mask=mask, label=label)
    found = targets_of(samples, LOGITS, SHAPE)
    assert found.dtype == np.int64 and found.tolist() == label.tolist()


REFUSED: dict[str, tuple[dict[str, Any], str, str]] = {
    "one label a window": ({"label": np.zeros(4, np.int64)}, "shape (4,)", "(4, 9)"),
    "labels of another length": ({"label": tokens(4)[:, 1:]}, "shape (4, 8)", "(4, 9)"),
    "labels that are no integers": ({"label": tokens(4).astype(np.float32)}, "float32", "integers"),
    "a token beyond the vocabulary": ({"label": np.full((4, SEQUENCE), 7)}, "such as 7", "0 to 6"),
    "another negative number": ({"label": np.full((4, SEQUENCE), -1)}, "such as -1", "-100"),
    "nothing to foretell": ({"label": np.full((4, SEQUENCE), IGNORED)}, "4 windows", "at least one"),
    "only the first token": ({"attention_mask": np.eye(1, SEQUENCE, dtype=np.int64).repeat(4, 0)}, "4 windows", "one"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_data_without_targets_is_refused(case: str, tmp_path: Path) -> None:
    """The file, what was found in it and what should be are named."""
    arrays, found, expected = REFUSED[case]
    with pytest.raises(DataError) as caught:
        targets_of(saved(tmp_path, input_ids=tokens(4), **arrays), LOGITS, SHAPE)
    error = caught.value
    assert "evaluation.npz" in error.found and found in error.found
    assert expected in error.expected and error.fix


def test_data_without_tokens_is_refused(tmp_path: Path) -> None:
    np.savez(tmp_path / "evaluation.npz", x=tokens(4))
    spec = (TensorSpec("x", "int64", ("batch", "sequence")),)
    samples = load_samples(tmp_path / "evaluation.npz", spec, label="label", role="evaluation")
    with pytest.raises(DataError, match="neither labels nor an array 'input_ids'"):
        targets_of(samples, LOGITS, SHAPE)


def test_no_more_than_one_batch_of_logits_lives(tmp_path: Path) -> None:
    """Each batch is gone before the next is made: logits of real models take 100 MB a window."""
    import weakref

    samples, alive = saved(tmp_path, input_ids=tokens(6)), []

    def batches() -> Any:
        for _ in range(3):
            assert all(made() is None for made in alive)
            logits = np.zeros((2, SEQUENCE, VOCABULARY), np.float32)
            alive.append(weakref.ref(logits))
            yield logits
            del logits

    assert len(score_batches(batches(), samples, LOGITS)) == 6 and len(alive) == 3


# Through the code that measures


def bigram(folder: Path, table: NDArray[np.float32]) -> Path:
    """A language model that knows the token before alone: `logits = table[input_ids]`."""
    graph = helper.make_graph(
        [helper.make_node("Gather", ["table", "input_ids"], ["logits"])],
        "bigram",
        [helper.make_tensor_value_info("input_ids", TensorProto.INT64, ["batch", "sequence"])],
        [helper.make_tensor_value_info("logits", TensorProto.FLOAT, ["batch", "sequence", VOCABULARY])],
        [numpy_helper.from_array(table, "table")],
    )
    path = folder / "bigram.onnx"
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 21)], ir_version=10), path)
    return path


def chains(table: NDArray[np.float32], n: int) -> NDArray[np.int64]:
    """Windows drawn from the model itself, so that any other table foretells them worse."""
    rng = np.random.default_rng(11)
    ids = np.empty((n, SEQUENCE), np.int64)
    ids[:, 0] = rng.integers(0, VOCABULARY, n)
    for at in range(1, SEQUENCE):
        noisy = table[ids[:, at - 1]] + rng.gumbel(size=(n, VOCABULARY))
        ids[:, at] = noisy.argmax(axis=1)
    return ids


@pytest.fixture
def measured(tmp_path: Path) -> Any:
    """A function from a table to its accuracy on windows of the reference table, and that table."""
    reference = np.random.default_rng(2).normal(size=(VOCABULARY, VOCABULARY)).astype(np.float32) * 2
    np.savez(tmp_path / "evaluation.npz", input_ids=chains(reference, 300))
    samples = load_samples(tmp_path / "evaluation.npz", (INPUT,), label="label", role="evaluation")
    evidence = Evidence((INPUT,), LOGITS, samples, samples, None, None, np.zeros(300, bool))
    files = {"calibration": "evaluation.npz", "evaluation": "evaluation.npz"}
    job = parse_job({"source": "m.onnx", "data": files, "metric": "perplexity"}, base=tmp_path)
    run = run_in(tmp_path, job)
    source = Source("m", "m", None, "0", tmp_path / "m.onnx", "file")
    loaded = with_inputs(run, source, evidence, take_inventory("ort-cpu"))

    def measure(table: NDArray[np.float32], baseline: Accuracy | None = None) -> Accuracy:
        path, settings = bigram(tmp_path, table), SessionSettings("CPUExecutionProvider", 1)
        variant = Variant("bigram", path, str(table.tobytes()), 0, settings)
        reference = Reference(baseline, variant) if baseline else None
        return measure_accuracy(loaded, variant, reference)[0]

    return measure, reference, samples.inputs["input_ids"]


def test_the_metric_of_a_model(measured: Any) -> None:
    """exp of the mean loss; scores by window, and no logits on disk."""
    measure, table, ids = measured
    accuracy = measure(table)
    expected = -log_softmax(table.astype(np.float64), axis=-1)[ids[:, :-1], ids[:, 1:]].mean(axis=1)
    np.testing.assert_allclose(np.load(accuracy.scores_path), expected[:, None], rtol=1e-6)
    assert accuracy.metric == "perplexity" and accuracy.n == 300
    assert accuracy.value == pytest.approx(np.exp(expected.mean()), rel=1e-6)
    assert accuracy.outputs_path is None and np.load(accuracy.finite_path).shape == (300,)
    assert not list(accuracy.scores_path.parent.glob("outputs*"))


@pytest.mark.parametrize(("noise", "outcome"), [(0.0, "pass"), (0.002, "pass"), (1.0, "fail")])
def test_the_gate_tells_a_worse_model_from_an_equal_one(noise: float, outcome: str, measured: Any) -> None:
    """Paired by window: equal logits, or nearly, are within 0.02 nats beyond doubt, and noise of half their size is not."""
    measure, table, _ = measured
    rng = np.random.default_rng(4)
    baseline = measure(table)
    variant = measure(table + (rng.normal(size=table.shape) * noise).astype(np.float32), baseline)
    rows, baseline_rows = np.load(variant.scores_path), np.load(baseline.scores_path)
    drop, method = estimate_drop(PERPLEXITY, baseline_rows, rows, 0.95, seed=1)
    verdict = judge_drop(drop, Gates(max_drop=0.02), n=len(rows), method=method)
    assert verdict.outcome == outcome and verdict.n == 300
    # A rise of the loss by d nats is a ratio of perplexities of exp(d).
    assert variant.value / baseline.value == pytest.approx(math.exp(drop.value), rel=1e-9)


def test_batches_of_one_give_what_all_at_once_give(measured: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    measure, table, _ = measured
    one = np.load(measure(table).scores_path)
    monkeypatch.setattr("tasks.trials.measure_accuracy.WINDOWS_AT_ONCE", 77)
    assert WINDOWS_AT_ONCE == 1
    np.testing.assert_array_equal(np.load(measure(table * 1.0 + 0).scores_path), one)
