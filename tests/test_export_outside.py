"""Run a trained model outside: in a process without JAX, by onnxruntime."""

import json
import subprocess
import sys

import jax
import numpy as np
import pytest

from scanrnn import training
from scanrnn.__main__ import main

pytest.importorskip("onnxruntime")
LENGTH, PROMPT, TEMPERATURE = 120, "the ", 0.7

# Another program needs only the file, and the meaning of its numbers.
WRITE = """
import json, sys
import numpy as np
import onnxruntime

folder, prompt, temperature = sys.argv[1], sys.argv[2], np.float32(sys.argv[3])
symbols = json.load(open(f"{folder}/model.vocabulary.json", encoding="utf-8"))
session = onnxruntime.InferenceSession(f"{folder}/model.onnx")
carry = {
    one.name: np.zeros([1, *one.shape[1:]], np.float32)
    for one in session.get_inputs()
    if one.name != "input"
}

def step(symbol):
    ids = np.array([[symbol]], np.int32)
    logits, *last = session.run(None, {"input": ids, **carry})
    carry.update(zip(carry, last))
    return logits[0, 0]

ids = [symbols.index(symbol) for symbol in prompt]
for symbol in ids[:-1]:
    step(symbol)
text, symbol = "", ids[-1]
for noise in np.load(f"{folder}/noise.npy"):
    symbol = int(np.argmax(step(symbol) / temperature + noise))
    text += symbols[symbol]
assert not {"jax", "flax", "scanrnn"} & set(sys.modules)
sys.stdout.buffer.write(text.encode())
"""


@pytest.mark.slow
@pytest.mark.usefixtures("in_32_bit")
@pytest.mark.parametrize("dtype", ["bfloat16", "float32"])
def test_onnxruntime_writes_the_same_text_with_the_same_random_numbers(tmp_path, dtype):
    out, text = str(tmp_path / "run"), tmp_path / "text.txt"
    text.write_text("the cat sat on the mat, and the rat ran off. " * 200)
    words = ["train", "--out", out, "--text", str(text), "--precision", dtype]
    small = {"features": 48, "steps": 150, "batch": 4, "window": 16, "sample": 0}
    for name, value in (small | {"evaluate-every": 150}).items():
        words += [f"--{name}", str(value)]
    assert main(words) == 0
    assert main(["export", "--out", out]) == 0

    model, vocabulary = training.load_model(out)
    key = jax.random.key(0)
    pieces = training.generate(
        model,
        vocabulary,
        LENGTH,
        prompt=PROMPT,
        temperature=TEMPERATURE,
        key=key,
    )
    wanted = "".join(pieces)
    noise = [
        jax.random.gumbel(jax.random.fold_in(key, k), (len(vocabulary),), np.float32)
        for k in range(LENGTH)
    ]
    np.save(f"{out}/noise.npy", noise)
    arguments = [sys.executable, "-c", WRITE, out, PROMPT, str(TEMPERATURE)]
    got = subprocess.run(arguments, capture_output=True, check=True, timeout=120)
    assert got.stdout.decode() == wanted
    assert len(set(wanted)) > 5  # it has learnt to write words


@pytest.mark.slow
@pytest.mark.usefixtures("in_32_bit")
def test_the_exported_vocabulary_is_that_of_the_run(tmp_path):
    out, text = str(tmp_path / "run"), tmp_path / "text.txt"
    text.write_text("abcé\n" * 200, encoding="utf-8")
    words = ["train", "--out", out, "--text", str(text), "--features", "8"]
    words += ["--steps", "1", "--batch", "2", "--window", "4", "--sample", "0"]
    assert main(words) == 0
    target = tmp_path / "m.stablehlo"
    assert (
        main(["export", "--out", out, "--format", "stablehlo", "--to", str(target)])
        == 0
    )
    names = json.loads((tmp_path / "m.vocabulary.json").read_text(encoding="utf-8"))
    assert names == ["\n", "a", "b", "c", "é"]
    assert target.stat().st_size > 1000
