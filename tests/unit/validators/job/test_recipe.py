"""Candidate names: every recipe encodes to one name, which decodes to that recipe, and nothing else decodes."""

from __future__ import annotations

import contextlib
from typing import get_args

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from validators.errors import JobError
from validators.job.candidate_name import (
    Candidate,
    Granularity,
    decode,
)
from validators.job.methods import RANGES, ROUNDINGS
from validators.targets import BUILT_IN, built_in_engines

GRANULARITIES = st.sampled_from(get_args(Granularity))
TARGET = st.sampled_from(built_in_engines())
BLOCK_SIZES = (16, 32, 64, 128, 256)

CANDIDATES = st.one_of(
    st.builds(Candidate, st.just("fp32"), TARGET, fused=st.just(True)),
    st.builds(Candidate, st.just("fp16"), TARGET, fused=st.booleans()),
    st.builds(
        Candidate,
        st.just("int8"),
        TARGET,
        range_method=st.sampled_from([*RANGES]),
        granularity=GRANULARITIES,
        every_operator=st.booleans(),
        signed_activations=st.booleans(),
        smooth=st.booleans(),
        bias_corrected=st.booleans(),
        fast=st.booleans(),
        sqnr_db=st.integers(0, 99),
        fused=st.booleans(),
        bf16_floats=st.booleans(),
    ),
    st.builds(Candidate, st.just("bf16"), TARGET),
    st.builds(
        Candidate, st.just("int8"), TARGET, dynamic=st.just(True), granularity=GRANULARITIES, fused=st.booleans()
    ),
    st.builds(
        Candidate,
        st.just("int4"),
        TARGET,
        block_size=st.sampled_from(BLOCK_SIZES),
        weight_method=st.sampled_from([*ROUNDINGS]),
        asymmetric=st.booleans(),
        fused=st.booleans(),
        bf16_floats=st.booleans(),
    ),
    st.builds(Candidate, st.just("fp8"), TARGET, granularity=GRANULARITIES, fused=st.booleans()),
)
# Pieces of names in any order: most of what they make is no name, some of it nearly one.
PIECES = st.lists(
    st.sampled_from(
        (
            *(
                "fp32",
                "fp16",
                "bf16",
                "-bf16",
                "int8",
                "int4",
                "fp8",
                "-static",
                "-dynamic",
                "-fused",
                "-minmax",
                "-entropy",
                "-pt",
            ),
            *(
                "-pc",
                "-all",
                "-s8s8",
                "-40db",
                "-0db",
                "-g32",
                "-g33",
                "-rtn",
                "-amax",
                "+fused",
                "@ort-cpu",
                "@tensorrt",
                "@gpu",
                "\n",
            ),
        )
    ),
    max_size=8,
).map("".join)

TABLE = {
    "fp32-fused@ort-cpu": Candidate("fp32", "ort-cpu", fused=True),
    "fp16@tensorrt": Candidate("fp16", "tensorrt"),
    "int8-static-minmax-pt-all-s8s8@ort-cpu": Candidate(
        "int8", "ort-cpu", range_method="minmax", granularity="pt", every_operator=True, signed_activations=True
    ),
    "int8-static-entropy-pc-all-12db@ort-cpu": Candidate(
        "int8", "ort-cpu", range_method="entropy", granularity="pc", every_operator=True, sqnr_db=12
    ),
    "int8-static-mse-pc-smooth-bc-9db@ort-cpu": Candidate(
        "int8", "ort-cpu", range_method="mse", granularity="pc", smooth=True, bias_corrected=True, sqnr_db=9
    ),
    "int8-static-minmax-pc-keep2@ort-cpu": Candidate(
        "int8", "ort-cpu", range_method="minmax", granularity="pc", retired="keep2"
    ),
    "int8-static-percentile-pc@ort-cuda": Candidate("int8", "ort-cuda", range_method="percentile", granularity="pc"),
    "int8-dynamic-pc+fused@ort-cpu": Candidate("int8", "ort-cpu", dynamic=True, granularity="pc", fused=True),
    "int8-dynamic-pt-smooth-99db@ort-cpu": Candidate(
        "int8", "ort-cpu", dynamic=True, granularity="pt", smooth=True, sqnr_db=99
    ),
    "int4-g128-rtn@tensorrt": Candidate("int4", "tensorrt", block_size=128, weight_method="rtn"),
    "int4-g64-hqq-asym@ort-cpu": Candidate("int4", "ort-cpu", block_size=64, weight_method="hqq", asymmetric=True),
    "int4-g64-gptq-asym-mix25-rot+kv4@ort-genai": Candidate(
        "int4",
        "ort-genai",
        block_size=64,
        weight_method="gptq",
        asymmetric=True,
        retired="mix25",
        rotated=True,
        cache_bits=4,
    ),
    "int8-dynamic-pc-rot-2db@ort-genai": Candidate(
        "int8", "ort-genai", dynamic=True, granularity="pc", rotated=True, sqnr_db=2
    ),
    "fp8-amax-pt@ort-cpu": Candidate("fp8", "ort-cpu", granularity="pt"),
}

NO_NAMES = (
    "",
    "int8",
    "int8-static-minmax-pc",
    "int8-static-minmax-pc@gpu",
    "INT8-static-minmax-pc@ort-cpu",
    "int8-static-minmax-pc-s8s8-all@ort-cpu",
    "int8-static-minmax@ort-cpu",
    "int8-dynamic@ort-cpu",
    "int8-dynamic-pc-all@ort-cpu",
    "int4-g33-rtn@ort-cpu",
    "int4-rtn@ort-cpu",
    "fp8-amax@ort-cpu",
    "fp32@ort-cpu",
    "fp32-fused+fused@ort-cpu",
    "fp16@tensorrt\n",
    " fp16@tensorrt",
    "fp16@tensorrt@tensorrt",
)


@pytest.mark.parametrize("name", sorted({name for facts in BUILT_IN.values() for name in facts.default_candidates}))
def test_every_default_name_encodes_to_itself(name: str) -> None:
    """A name of the tables decodes, and what it decodes to has that name."""
    assert decode(name).name == name


def test_every_target_has_candidates_of_its_own_and_none_twice() -> None:
    """The default list of a target names that target alone, or all engines of a class, each candidate once."""
    for target, facts in BUILT_IN.items():
        names = facts.default_candidates
        assert {decode(name).target for name in names} == set(facts.engines or (target,))
        assert len(set(names)) == len(names) > 0


@pytest.mark.parametrize(("name", "candidate"), TABLE.items())
def test_names_and_candidates_of_a_table(name: str, candidate: Candidate) -> None:
    """Names written by hand mean the candidates written by hand."""
    assert decode(name) == candidate
    assert candidate.name == name


@given(CANDIDATES)
@settings(derandomize=True, database=None, max_examples=300)
def test_every_candidate_of_the_grammar_comes_back(candidate: Candidate) -> None:
    """Encoding and decoding lose nothing, whatever the parts."""
    assert decode(candidate.name) == candidate


@given(PIECES)
@settings(derandomize=True, database=None, max_examples=500)
def test_text_is_refused_or_is_the_name(text: str) -> None:
    """No text decodes to a candidate of another name: there are no aliases."""
    with contextlib.suppress(JobError):
        assert decode(text).name == text


@pytest.mark.parametrize("name", NO_NAMES)
def test_a_bad_name_is_refused_and_named(name: str) -> None:
    """The error shows the name that was found, and says what to do."""
    with pytest.raises(JobError) as caught:
        decode(name)
    assert repr(name) in caught.value.found
    assert caught.value.expected and caught.value.fix


@pytest.mark.parametrize(
    ("name", "simulated"),
    [
        ("fp8-amax-pc@ort-cpu", True),
        ("fp8-amax-pc@tensorrt", False),
        ("int8-dynamic-pc@ort-cpu", False),
        ("fp16@ort-cpu", False),
    ],
)
def test_only_fp8_on_a_cpu_is_simulated(name: str, simulated: bool) -> None:
    """The one precision that a CPU can only compute the numbers of."""
    assert decode(name).is_simulated is simulated
