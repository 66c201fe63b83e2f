"""The table of operators that TensorRT's parser knows, against the parser that is installed."""

from __future__ import annotations

import json
import subprocess
import sys

import onnx
import pytest
from onnxruntime.capi.onnxruntime_pybind11_state import get_all_operator_schema

from validators.graph.tensorrt_operators import CONTRIB_AS_STANDARD, CONTRIB_IMPORTED, STANDARD_IMPORTED

# In a process of its own: one logger serves a whole process.
ASK = """
import json, sys
import tensorrt_rtx as trt
logger = trt.Logger(trt.Logger.ERROR)
builder = trt.Builder(logger)
parser = trt.OnnxParser(builder.create_network(0), logger)
print(json.dumps([name for name in json.load(sys.stdin) if parser.supports_operator(name)]))
"""


def test_the_table_is_what_the_parser_says() -> None:
    pytest.importorskip("tensorrt_rtx", reason="its wheels are for x86-64 Linux alone")
    standard = {schema.name for schema in onnx.defs.get_all_schemas() if not schema.domain}
    contrib = {schema.name for schema in get_all_operator_schema() if schema.domain == "com.microsoft"}
    names = json.dumps(sorted(standard | contrib | {"SimplifiedLayerNormalization"}))
    done = subprocess.run([sys.executable, "-c", ASK], input=names, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    known = set(json.loads(done.stdout.splitlines()[-1]))
    assert known & standard == STANDARD_IMPORTED
    # Its importer is there, and the plugin that it looks for is not: a model in broken_models.py shows it.
    assert known - standard == CONTRIB_IMPORTED | {"MatMulNBits"}
    assert contrib & STANDARD_IMPORTED >= CONTRIB_AS_STANDARD
