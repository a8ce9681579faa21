"""Checkpoints on disk."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from scanrnn.training import Checkpoints

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


@pytest.mark.parametrize("item", ["state", "notes"])
def test_checkpoint_that_is_damaged_says_so_and_the_way_out(tmp_path, item):
    saved(tmp_path, 2, 4)
    for path in (tmp_path / "4" / item).rglob("*"):
        if path.is_file():
            path.write_bytes(b"damaged")
    checkpoints = Checkpoints(tmp_path)
    with pytest.raises(ValueError, match="4 cannot be read .*delete that folder") as e:
        _ = checkpoints.notes() if item == "notes" else checkpoints.state(like=LIKE)
    assert str(tmp_path / "4") in str(e.value)


def test_checkpoint_of_another_shape_is_refused(tmp_path):
    checkpoints = saved(tmp_path, 4)
    with pytest.raises(ValueError, match="4 cannot be read"):
        checkpoints.state(like={**LIKE, "count": jnp.zeros([2], jnp.int32)})
