"""A process that compiles for one machine; rows and records are lines of JSON.

python -m benchmarks.compiled.worker
"""

import json
import os
import pathlib
import sys

from benchmarks.compiled import measure


def main(answer) -> None:
    """Answers each line of the input by `answer(request)`, until the input ends."""
    # Compilers print to the output, too: only records may reach the reader.
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    for line in sys.stdin:
        print(json.dumps(answer(json.loads(line))), file=answers, flush=True)


def _answer(request):
    row = measure.Row.of(request["row"])
    try:
        record, text = measure.measure(row, request.get("top", 0))
    except Exception as error:
        first = str(error).strip().partition("\n")[0][:300]
        return row.as_json() | {"error": f"{type(error).__name__}: {first}"}
    if path := request.get("text"):
        pathlib.Path(path).write_text(text)
    return record


if __name__ == "__main__":
    main(_answer)
