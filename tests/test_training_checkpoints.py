"""Checkpoints on disk."""

import subprocess
import sys

import jax
import jax.numpy as jnp
import numpy as np
import orbax.checkpoint as ocp
import pytest

from scanrnn.training import Checkpoints, _checkpoints

STATE = {
    "weights": (jnp.arange(6.0).reshape(2, 3), jnp.ones(3, jnp.bfloat16) / 3),
    "count": jnp.int32(7),
    "key": jax.random.key(5),
}
LIKE = jax.tree.map(lambda a: a if a.dtype == STATE["key"].dtype else 0 * a, STATE)


def saved(folder, *steps):
    checkpoints = Checkpoints(folder)
    for step in steps:
        checkpoints.save(step, STATE, {"position": step})
    checkpoints.wait()
    return checkpoints


def test_checkpoint_gives_back_every_bit(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)  # a relative folder is fine
    saved("run", 3)
    again = Checkpoints("run")
    state = again.state(like=LIKE)
    assert (again.latest(), again.notes()) == (3, {"position": 3})
    assert jax.tree.structure(state) == jax.tree.structure(STATE)
    for got, want in zip(jax.tree.leaves(state), jax.tree.leaves(STATE), strict=True):
        assert got.dtype == want.dtype
        if jnp.issubdtype(want.dtype, jax.dtypes.prng_key):
            got, want = jax.random.key_data(got), jax.random.key_data(want)
        np.testing.assert_array_equal(np.asarray(got), np.asarray(want))


def test_checkpoints_keep_the_newest_two(tmp_path):
    checkpoints = saved(tmp_path, 1, 2, 5)
    assert checkpoints.latest() == 5
    assert sorted(p.name for p in tmp_path.iterdir() if p.is_dir()) == ["2", "5"]


def test_checkpoint_of_a_step_is_saved_once(tmp_path):
    checkpoints = saved(tmp_path, 4)
    checkpoints.save(4, STATE, {"position": 99})
    assert checkpoints.notes() == {"position": 4}


def test_checkpoints_clear_starts_again(tmp_path):
    checkpoints = saved(tmp_path, 4)
    checkpoints.clear()
    assert checkpoints.latest() is None
    with pytest.raises(ValueError, match="no checkpoint in .*train one first"):
        checkpoints.notes()


def test_checkpoint_that_was_never_completed_is_not_seen(tmp_path):
    saved(tmp_path, 4)
    (tmp_path / "9.orbax-checkpoint-tmp").mkdir()
    assert Checkpoints(tmp_path).latest() == 4


def damage(folder):
    for path in folder.rglob("*"):
        if path.is_file():
            path.write_bytes(b"damaged")


def test_checkpoint_whose_notes_are_damaged_says_so_and_the_way_out(tmp_path):
    checkpoints = saved(tmp_path, 2, 4)
    damage(tmp_path / "4" / "notes")
    with pytest.raises(ValueError, match="4 cannot be read .*delete that folder"):
        checkpoints.notes()


READ_STATE = """
import sys
import jax.numpy as jnp
from scanrnn.training import Checkpoints
Checkpoints(sys.argv[1]).state(like={"weights": jnp.zeros(100)})
"""


def test_checkpoint_whose_state_is_damaged_says_so_and_the_way_out(tmp_path):
    checkpoints = Checkpoints(tmp_path)
    for step in (2, 4):
        checkpoints.save(step, {"weights": jnp.ones(100)}, {})
    damage(tmp_path / "4" / "state")
    # Another process: Orbax drops coroutines when a read fails, and Python complains
    # of that at some later time.
    process = subprocess.run(
        [sys.executable, "-c", READ_STATE, str(tmp_path)],
        capture_output=True,
        text=True,
    )
    assert f"ValueError: checkpoint {tmp_path / '4'} cannot be read" in process.stderr
    assert "delete that folder to go on from the checkpoint before" in process.stderr


def test_checkpoint_with_one_byte_changed_is_refused(tmp_path):
    like = {"w": jnp.arange(3000.0)}
    checkpoints = Checkpoints(tmp_path)
    checkpoints.save(1, like, {})
    checkpoints.wait()
    good = dict(_checkpoints._checksums(like))
    assert checkpoints.state(like)["w"][7] == 7.0
    spoiled = {"w": like["w"].at[7].set(-7.0)}
    checkpoints.save(2, spoiled, {})
    checkpoints.wait()
    # As if a disk had changed the array: its checksum is the one of what was saved.
    notes = tmp_path / "2" / "notes" / "metadata"
    text = notes.read_text()
    spoiled_sum = str(_checkpoints._checksums(spoiled)["['w']"])
    assert spoiled_sum in text
    notes.write_text(text.replace(spoiled_sum, str(good["['w']"])))
    with pytest.raises(ValueError, match=r"2 cannot be read \(the bytes of \['w'"):
        Checkpoints(tmp_path).state(like)


def test_checkpoint_of_another_program_is_refused(tmp_path):
    with ocp.CheckpointManager(tmp_path, item_names=("state", "notes")) as manager:
        items = ocp.args.Composite(
            state=ocp.args.StandardSave({"w": jnp.ones(2)}),
            notes=ocp.args.JsonSave({"step": 3}),
        )
        manager.save(3, args=items)
    with pytest.raises(ValueError, match="3 cannot be read .it was not written by"):
        Checkpoints(tmp_path).notes()


def test_checkpoint_is_of_the_state_as_it_was_when_saving_began(tmp_path):
    give_away = jax.jit(
        lambda state: jax.tree.map(lambda a: a + 1, state), donate_argnums=0
    )
    checkpoints, state = Checkpoints(tmp_path), {"w": jnp.zeros([300, 300])}
    checkpoints.save(1, state, {})
    for _ in range(50):
        state = give_away(state)
    assert float(jnp.max(jnp.abs(checkpoints.state(like=state)["w"]))) == 0.0
