"""Runs that are killed at any moment, and checkpoints that are damaged."""

import json
import os
import random
import signal
import subprocess
import sys
import time

import numpy as np
import pytest

from scanrnn.training import Checkpoints

# A run with many small steps and saves. Its results depend on the carry, the keys of
# dropout, the loss scale and a bad batch.
RUN = """
import sys, time
import jax, jax.numpy as jnp, numpy as np, optax
from flax import nnx
from flax.training.dynamic_scale import DynamicScale
from scanrnn.training import (
    Checkpoints, LanguageModel, Log, Precision, Streams, fit, init_state, make_loss,
    make_train_step, resume,
)
from scanrnn.training._model import zero_carry

folder, pause = sys.argv[1], float(sys.argv[2])
model = LanguageModel(
    7, 4, num_layers=1, dropout=0.2, precision=Precision.parse("float16"),
    rngs=nnx.Rngs(0),
)
inner = make_loss(model)

def loss_fn(params, carry, batch, key):
    loss, aux = inner(params, carry, batch, key)
    return jnp.where(batch.inputs[0, 0] == 3, jnp.nan, loss), aux

optimizer = optax.adam(1e-2)
state = init_state(
    nnx.state(model), optimizer, carry=zero_carry(model, 2), key=jax.random.key(1),
    loss_scale=DynamicScale(growth_interval=5),
)
batches = Streams(np.random.default_rng(0).integers(0, 7, 101).astype(np.int32), 2, 5)
checkpoints = Checkpoints(folder + "/checkpoint")
state, _ = resume(checkpoints, state, batches)
step = make_train_step(loss_fn, optimizer, clip=0.5)
log = Log(folder + "/log.jsonl", last=int(state.counts.steps))
def slowly(s, batch):
    time.sleep(pause)
    out = step(s, batch)
    print("a step", flush=True)
    return out

fitted = fit(
    slowly, state, batches, steps=48, evaluate_every=3, writers=[log],
    checkpoints=checkpoints,
)
state = fitted.state._replace(key=jax.random.key_data(fitted.state.key))
np.savez(folder + "/end.npz", *map(np.asarray, jax.tree.leaves(state)))
"""


def start(folder, pause=0.0):
    folder.mkdir(exist_ok=True)
    return subprocess.Popen(
        [sys.executable, "-c", RUN, str(folder), str(pause)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def finish(folder):
    process = start(folder)
    _, errors = process.communicate(timeout=120)
    assert process.returncode == 0, errors
    with np.load(folder / "end.npz") as arrays:
        leaves = [arrays[name] for name in arrays.files]
    rows = [
        json.loads(line) for line in (folder / "log.jsonl").read_text().split("\n")[:-1]
    ]
    return leaves, [{n: v for n, v in row.items() if n != "seconds"} for row in rows]


@pytest.mark.slow
def test_run_that_is_killed_at_random_moments_ends_with_the_same_bits(tmp_path):
    want, rows = finish(tmp_path / "straight")
    assert any(row["skipped"] for row in rows)
    moments, kills = random.Random(5), []
    for _ in range(4):
        process = start(tmp_path / "killed", pause=0.05)
        # Steps are counted, as a machine may be busy; 48 are more than all runs take.
        for _ in range(moments.randint(5, 7)):
            process.stdout.readline()
        time.sleep(moments.uniform(0, 0.05))
        process.send_signal(signal.SIGKILL)
        process.communicate()
        kills.append(Checkpoints(tmp_path / "killed" / "checkpoint").latest())
    assert len(set(kills)) > 2  # some runs went on from a checkpoint of another
    assert all(step is None or step % 3 == 0 for step in kills)
    got, again = finish(tmp_path / "killed")
    assert again == rows
    for a, b in zip(got, want, strict=True):
        np.testing.assert_array_equal(a, b)


SAVE = """
import sys, time
import jax.numpy as jnp
from scanrnn.training import Checkpoints
checkpoints = Checkpoints(sys.argv[1])
state = {"w": jnp.zeros([400, 1000])}
for step in range(1, 1000):
    checkpoints.save(step, {"w": state["w"] + step}, {"step": step})
    print(step, flush=True)
"""


@pytest.mark.slow
def test_process_that_is_killed_while_it_saves_leaves_a_whole_checkpoint(tmp_path):
    moments = random.Random(7)
    for number in range(4):
        folder = tmp_path / str(number)
        process = subprocess.Popen(
            [sys.executable, "-c", SAVE, str(folder)], stdout=subprocess.PIPE, text=True
        )
        for _ in range(3):
            begun = int(process.stdout.readline())
        time.sleep(moments.uniform(0, 0.05))  # a save takes about that long
        os.kill(process.pid, signal.SIGKILL)
        rest = process.communicate()[0].split()
        begun = int(rest[-1]) if rest else begun
        checkpoints = Checkpoints(folder)
        step = checkpoints.latest()
        assert begun - 2 <= step <= begun + 1
        assert checkpoints.notes() == {"step": step}
        like = {"w": np.zeros([400, 1000], np.float32)}
        np.testing.assert_array_equal(checkpoints.state(like)["w"], np.float32(step))
        checkpoints.close()
