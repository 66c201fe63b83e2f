"""The section on a decoder's answers: its figures follow from latencies and bytes, and its pictures name who they show."""

from __future__ import annotations

from dataclasses import replace

from report_data import ANSWERED, DECODER, JOB, RESULT, Reader

from flows.cli.results import result_parts
from tasks.reporting.answers import answers_table, cache_lengths, memory_table
from tasks.reporting.page import render_page
from tasks.reporting.pictures.run_pictures import draw_pictures
from validators.records.latencies import NEW_TOKENS
from validators.records.result import Result


def test_speeds_follow_from_the_latencies_and_the_bytes() -> None:
    rows = {(row[0], row[3]): row for row in answers_table(DECODER).texts()}
    assert len(rows) == 2 * (1 + 4)
    row = rows[ANSWERED, "128 + 64"]
    # (1500 - 180) / 63 ms a token; 151 MB of weights and 11.52 kB for each of 160 tokens.
    assert row[4:] == ("180", "47.7", "153", "7.29") and row[1:3] == ("20.7", "62.5")
    assert {row[0][1].text for kind, row in answers_table(DECODER).shown() if kind == "chosen"} == {ANSWERED}
    base = rows["baseline", "512 + 64"]
    # (4100 - 900) / 63 ms a token; 538 MB and 46.08 kB for each of 544 tokens.
    assert base[4:] == ("900", "19.7", "563", "11.1")


def test_memory_is_that_of_weights_and_cache() -> None:
    assert cache_lengths(DECODER) == (1024, 8192)
    rows = {row[0]: row for row in memory_table(DECODER).texts()}
    # 180 MB and 11.52 kB a token.
    assert rows[ANSWERED][2:] == ("11.5", "192", "274")
    assert rows["baseline"][1] == "651" and rows["baseline"][3:] == ("698", "1028")


def test_pictures_show_each_candidate_and_the_baseline() -> None:
    drawn = draw_pictures(DECODER, JOB.gates)
    assert drawn.tokens_per_second and drawn.first_tokens and drawn.memory
    for one in DECODER.candidates:
        assert (
            f"{one.name}: " in drawn.tokens_per_second.description and f"{one.name}: " in drawn.first_tokens.description
        )
    assert f"{ANSWERED}: 192 MB at 1024, 274 MB at 8192" in drawn.memory.description
    # Both have the same bytes, and share a line.
    assert "int4-g32-rtn@ort-genai, int4-g32-gptq@ort-genai: 244 MB at 1024" in drawn.memory.description
    assert "int4-g32-rtn +1" in drawn.memory.svg and "int8-g32-rtn+kv8" in drawn.tokens_per_second.svg
    assert {"tokens_per_second", "first_tokens", "memory"} <= drawn.of_run(None).keys()


def test_the_page_has_the_section_for_decoders_alone() -> None:
    text = render_page(DECODER, JOB, (), draw_pictures(DECODER, JOB.gates))
    Reader(text)
    assert 'id="answers"' in text and "<h3>Memory</h3>" in text and "MB at 8,192" in text
    other = render_page(RESULT, JOB, (), draw_pictures(RESULT, JOB.gates))
    assert 'id="answers"' not in other


def without_first_tokens(result: Result) -> Result:
    candidates = [
        one.model_copy(update={"latencies": [late for late in one.latencies if late.dims[NEW_TOKENS] > 1]})
        for one in result.candidates
    ]
    return result.model_copy(update={"candidates": candidates})


def test_without_first_tokens_only_memory_is_told() -> None:
    result = without_first_tokens(DECODER)
    assert not answers_table(result) and len(memory_table(result).rows) == 5
    drawn = draw_pictures(result, JOB.gates)
    assert drawn.tokens_per_second is drawn.first_tokens is None and drawn.memory
    Reader(render_page(result, JOB, (), drawn))


def test_one_length_has_no_picture_of_first_tokens() -> None:
    candidates = [one.model_copy(update={"latencies": one.latencies[:2]}) for one in DECODER.candidates]
    drawn = draw_pictures(DECODER.model_copy(update={"candidates": candidates}), JOB.gates)
    assert drawn.first_tokens is None and drawn.tokens_per_second


def test_points_of_several_sequences_say_so() -> None:
    candidates = [
        one.model_copy(
            update={"latencies": [replace(late, batch_size=size) for size in (1, 4) for late in one.latencies[:2]]}
        )
        for one in DECODER.candidates
    ]
    rows = answers_table(DECODER.model_copy(update={"candidates": candidates})).texts()
    assert {row[3] for row in rows} == {"128 + 64, batch 1, 0 threads", "128 + 64, batch 4, 0 threads"}


def test_the_terminal_tells_the_chosen_answers() -> None:
    parts = result_parts(DECODER)
    assert "answers:   prompt of 128: first token after 180 ms (baseline 210), then 47.7 tokens a second" in "\n".join(
        part for part in parts if isinstance(part, str)
    )
