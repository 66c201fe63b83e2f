"""Process that loads a model of another flavor and writes it as ONNX; `torch_export` runs it with `python -m`.

It is confined (`tasks.runtimes.confined`), and has the file access of its user.
Orders are lines of JSON on standard input, answers are lines of JSON on standard output.
"""

from __future__ import annotations

import json
import os
import sys
from typing import Any

import numpy as np

from tasks.evidence import original_models
from tasks.runtimes.confined import confine, first_cause
from validators.errors import SourceError

LOADERS = {
    "program": original_models.from_program,
    "pickle": original_models.from_pickle,
    "transformers": original_models.from_transformers,
    "decoder": original_models.from_decoder,
    "sentence_transformers": original_models.from_sentence_transformers,
    "keras": original_models.from_keras,
    "sklearn": original_models.from_sklearn,
}


def main() -> None:
    # Keep the model's prints out of the answers.
    answers = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)
    order = json.loads(sys.stdin.readline())
    has_network = not confine(order["written_bytes"])

    def answer(message: dict[str, Any]) -> None:
        answers.write(json.dumps(message) + "\n")
        answers.flush()

    try:
        run = LOADERS[order["kind"]](order)
        answer({"has_network": has_network})
        asked = json.loads(sys.stdin.readline())
        with np.load(asked["batch"], allow_pickle=False) as archive:
            np.savez(asked["outputs"], *run({name: archive[name] for name in asked["names"]}))
        answer({})
    except SourceError as error:
        answer({"refused": {"found": error.found, "expected": error.expected, "fix": error.fix}})
    except Exception as error:  # the model, the conversion of its operators, or its pickle may raise anything
        answer({"error": first_cause(error)})


if __name__ == "__main__":
    main()
