"""Error rates: tables by hand, jiwer on the whole, and every way in which outputs and labels become text."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import jiwer
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tasks.measure.metrics.texts import count_errors, error_rate, make_decoder
from validators.errors import JobError
from validators.job.job_data import TextDecoding
from validators.samples.datasets import TensorSpec

# Id 0 is the blank of CTC; `|` stands for a space.
TOKENS = ["<blank>", "a", "b", "|", "c"]


@pytest.fixture
def vocabulary(tmp_path: Path) -> Path:
    path = tmp_path / "tokens.txt"
    path.write_text("\n".join(TOKENS) + "\n", encoding="utf-8")
    return path


@pytest.mark.parametrize(
    ("meant", "said", "words", "characters"),
    [
        ("the cat sat", "the cat sat", (0, 3), (0, 11)),
        ("the cat sat", "the hat", (2, 3), (5, 11)),
        ("", "uh oh", (2, 0), (5, 0)),
        ("hello", "", (1, 1), (5, 5)),
        ("a b", "a x b", (1, 2), (2, 3)),
        ("abc", "bcd", (1, 1), (2, 3)),
    ],
)
def test_edits_by_hand(meant: str, said: str, words: tuple[int, int], characters: tuple[int, int]) -> None:
    assert count_errors(meant, said, by="wer") == words
    assert count_errors(meant, said, by="cer") == characters


TEXT = st.lists(st.sampled_from("abc"), min_size=1, max_size=6).map(" ".join)


@given(st.lists(st.tuples(TEXT, TEXT), min_size=1, max_size=12), st.data())
@settings(max_examples=50)
def test_any_selection_has_jiwers_rate(pairs: list[tuple[str, str]], data: st.DataObject) -> None:
    """The ratio of sums over the samples that were drawn, some of them twice."""
    meant, said = (np.array(texts) for texts in zip(*pairs, strict=True))
    drawn = data.draw(st.lists(st.integers(0, len(pairs) - 1), min_size=1, max_size=20))
    for name, whole in (("wer", jiwer.wer), ("cer", jiwer.cer)):
        metric = error_rate(name, make_decoder(TextDecoding()))  # type: ignore[arg-type]  # a tuple's names are str
        rows = metric.rows(said, meant, None)
        assert rows.shape == (len(pairs), 2)
        assert metric.value(rows[drawn]) == pytest.approx(whole(list(meant[drawn]), list(said[drawn])))


def test_an_empty_label_counts_its_insertions() -> None:
    """In the sum; by themselves such samples have no rate."""
    metric = error_rate("wer", make_decoder(TextDecoding()))
    rows = metric.rows(np.array(["uh oh", "a b"]), np.array(["", "a b"]), None)
    assert metric.value(rows) == 1.0
    assert np.isnan(metric.value(rows[:1]))


@pytest.mark.parametrize(
    ("ids", "text"),
    [
        ([1, 1, 0, 1, 2, 2], "aab"),
        ([0, 0, 0], ""),
        ([2, 3, 3, 0, 3, 1], "b  a"),
        ([1, 0, 0, 1], "aa"),
        ([4, 4, 4, 4], "c"),
        ([], ""),
    ],
)
def test_ctc_by_hand(ids: list[int], text: str, vocabulary: Path) -> None:
    """Runs are one, then blanks go: a blank between two of one token keeps both."""
    decoder = make_decoder(TextDecoding(decoding="ctc", vocabulary=vocabulary, separator="", space="|"))
    assert decoder.text_of(decoder.ids_of(np.array(ids, np.int64))) == text
    scores = np.full((len(ids), len(TOKENS)), -1.0, np.float32)
    scores[np.arange(len(ids)), ids] = 1.0
    assert decoder.text_of(decoder.ids_of(scores)) == text


def test_labels_are_not_collapsed(vocabulary: Path) -> None:
    """The same ids as output and as label: a doubled letter of a label stays, and -100 does not count."""
    decoder = make_decoder(TextDecoding(decoding="ctc", vocabulary=vocabulary, separator=""))
    metric = error_rate("cer", decoder)
    labels = np.array([[1, 1, 2, -100]])
    assert metric.rows(np.array([[1, 0, 1, 2]]), labels, None).tolist() == [[0.0, 3.0]]
    assert metric.rows(np.array([[1, 1, 2, 0]]), labels, None).tolist() == [[1.0, 3.0]]


def test_greedy_tokens_are_words_without_a_vocabulary(vocabulary: Path) -> None:
    """Ids are compared as they are; what `skip` names is no word; with a vocabulary labels may be text."""
    metric = error_rate("wer", make_decoder(TextDecoding(skip=(0,))))
    assert metric.rows(np.array([[7, 7, 0, 0]]), np.array([[7, 8, 7, 0, -100]]), None).tolist() == [[1.0, 3.0]]
    metric = error_rate("wer", make_decoder(TextDecoding(vocabulary=vocabulary, skip=(0,))))
    assert metric.rows(np.array([[1, 2, 0]], np.int32), np.array(["a c"]), None).tolist() == [[1.0, 2.0]]


def test_scores_without_a_best_token_say_nothing(vocabulary: Path) -> None:
    """NaN would name the token where it stands; every word of the label is an error instead. Masked scores are -inf."""
    metric = error_rate("wer", make_decoder(TextDecoding(vocabulary=vocabulary)))
    scores = np.full((2, 2, len(TOKENS)), -np.inf, np.float32)
    scores[:, :, 1] = 1.0
    scores[1, 1, 2] = np.nan
    assert metric.rows(scores, np.array(["a a", "a a"]), None).tolist() == [[0.0, 2.0], [2.0, 2.0]]


SCORES = TensorSpec("scores", "float32", ("batch", "time", 5))
TEXTS, IDS = TensorSpec("text", "str", ("batch",)), TensorSpec("ids", "int64", ("batch", "time"))


def test_outputs_that_fit(vocabulary: Path) -> None:
    metric = error_rate("cer", make_decoder(TextDecoding(vocabulary=vocabulary)))
    for output, shape in ((SCORES, (2, 9, 5)), (TEXTS, (2,)), (IDS, (2, 9))):
        assert metric.expects(output, shape).classes == 5 and metric.expects(output, shape).kind == "text"
    assert error_rate("cer", make_decoder(TextDecoding())).expects(TEXTS, (2,)).classes == 0


@pytest.mark.parametrize(
    ("output", "shape", "with_vocabulary", "words"),
    [
        (SCORES, (2, 9, 7), True, "scores of 5 tokens"),
        (SCORES, (2, 5), True, "scores (samples, tokens, vocabulary)"),
        (IDS, (2, 9), False, "`text.vocabulary`, without which"),
        (TEXTS, (2, 3), True, "text (samples,)"),
        (TensorSpec("mask", "bool", ("batch", 3)), (2, 3), True, "token ids (samples, tokens)"),
    ],
)
def test_outputs_that_are_no_text(
    output: TensorSpec, shape: tuple[int, ...], with_vocabulary: bool, words: str, vocabulary: Path
) -> None:
    decoder = make_decoder(TextDecoding(vocabulary=vocabulary if with_vocabulary else None))
    with pytest.raises(JobError) as caught:
        error_rate("cer", decoder).expects(output, shape)
    assert words in caught.value.expected and "'cer'" in caught.value.found


def test_a_vocabulary_that_does_not_fit_is_refused(vocabulary: Path, tmp_path: Path) -> None:
    with pytest.raises(JobError, match="No such file"):
        make_decoder(TextDecoding(vocabulary=tmp_path / "absent.txt"))
    with pytest.raises(JobError, match="blank: 5"):
        make_decoder(TextDecoding(decoding="ctc", vocabulary=vocabulary, blank=5))
    (tmp_path / "latin.txt").write_bytes(b"\xe9\n")
    with pytest.raises(JobError, match="not UTF-8"):
        make_decoder(TextDecoding(vocabulary=tmp_path / "latin.txt"))
    with pytest.raises(JobError, match="token id 9"):
        make_decoder(TextDecoding(vocabulary=vocabulary)).text_of(np.array([1, 9]))


def test_odd_tokens_keep_their_ids(tmp_path: Path) -> None:
    """Windows line ends, an empty token in the middle, and U+2028, which str.splitlines would take for a line's end."""
    (tmp_path / "tokens.txt").write_bytes("a\r\n\r\n\u2028\r\nb".encode())
    decoder = make_decoder(TextDecoding(vocabulary=tmp_path / "tokens.txt"))
    assert decoder.tokens == ("a", "", "\u2028", "b")


def test_another_vocabulary_is_another_measurement(vocabulary: Path) -> None:
    def version(**changes: Any) -> str:
        return error_rate("wer", make_decoder(TextDecoding(vocabulary=vocabulary, **changes))).version

    before = version()
    assert version(separator="") != before and version() == before
    vocabulary.write_text("\n".join(reversed(TOKENS)))
    assert version() != before
