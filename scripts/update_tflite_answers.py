"""Write what LiteRT computes for the networks of tests/helpers/tflite_cases.py, which tests compare Weft with.

Run `python -m scripts.update_tflite_answers` where the package ai-edge-litert is installed.
"""

from __future__ import annotations

import base64
import json
from pathlib import Path
from typing import Any

from tests.helpers.tflite_cases import CASES, Case

ANSWERS = Path(__file__).parents[1] / "tests" / "frontends" / "tflite_answers.json"


def answers(case: Case) -> list[Any]:
    """Return the outputs of a case as LiteRT's builtin kernels compute them, run by run."""
    from ai_edge_litert.interpreter import (  # type: ignore[import-not-found]
        Interpreter,
        OpResolverType,
    )

    plain = OpResolverType.AUTO if case.needs_delegate else OpResolverType.BUILTIN_WITHOUT_DEFAULT_DELEGATES
    interpreter = Interpreter(model_content=case.file.bytes(), experimental_op_resolver_type=plain)
    interpreter.allocate_tensors()
    made = []
    for inputs in case.runs:
        for detail, value in zip(interpreter.get_input_details(), inputs, strict=True):
            interpreter.set_tensor(detail["index"], value)
        interpreter.invoke()
        outputs = [interpreter.get_tensor(detail["index"]) for detail in interpreter.get_output_details()]
        made.append([[str(a.dtype), list(a.shape), base64.b64encode(a.tobytes()).decode()] for a in outputs])
    return made


def main() -> None:
    """Write the answers of all cases."""
    lines = [f"{json.dumps(name)}: {json.dumps(answers(case))}" for name, case in sorted(CASES.items())]
    ANSWERS.write_text("{\n" + ",\n".join(lines) + "\n}\n", encoding="utf-8")
    print(f"{len(lines)} answers, {ANSWERS.stat().st_size:,} bytes")


if __name__ == "__main__":
    main()
