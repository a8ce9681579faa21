"""Checkpoints on disk."""

import logging
import subprocess
import sys
from types import SimpleNamespace

import jax
import jax.numpy as jnp
import numpy as np
import orbax.checkpoint as ocp
import pytest

from scanrnn.training import Checkpoints, _checksums
from scanrnn.training._complaints import without_late_complaints
from scanrnn.training._files import writing

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


@pytest.mark.usefixtures("in_32_bit")
def test_checkpoint_keeps_the_64_bits_of_numpy(tmp_path):
    state = {
        "count": np.int64(2**40 + 1),
        "mean": np.arange(3) * 2.0**-40 + 1,
        "rate": 0.1,
        "w": jnp.ones(2),
    }
    with Checkpoints(tmp_path) as checkpoints:
        checkpoints.save(3, state, {})
        restored = checkpoints.state(like=state)
    for name, array in state.items():
        np.testing.assert_array_equal(restored[name], array)
        assert restored[name].dtype == np.asarray(array).dtype
    assert isinstance(restored["w"], jax.Array)


@pytest.mark.parametrize(
    ("change", "error", "message"),
    [
        ({"step": 3.0}, ValueError, "step: got 3.0, want an integer of at least 0"),
        ({"step": -1}, ValueError, "step: got -1, want an integer of at least 0"),
        ({"step": 1}, ValueError, r"step 2; delete it first by clear\(after=1\)"),
        ({"notes": [1]}, TypeError, "notes: got a list, want a dict"),
        ({"notes": {"n": np.int64(1)}}, TypeError, r"'n', which .*\.tolist\(\)"),
        ({"state": {}}, ValueError, "state: got no arrays, want at least one"),
        ({"state": {"w": "text"}}, TypeError, "state: 'w' is of str, want an array"),
        ({"state": {"w": np.array(["a"])}}, TypeError, "state: 'w' is of <U1, want"),
    ],
)
def test_save_refuses_what_no_checkpoint_can_hold(tmp_path, change, error, message):
    given = {"step": 3, "state": STATE, "notes": {}} | change
    with saved(tmp_path, 2) as checkpoints:
        with pytest.raises(error, match=message):
            checkpoints.save(**given)
        assert checkpoints.steps() == [2]
        checkpoints.save(np.int64(3), STATE, {})
    assert Checkpoints(tmp_path).steps() == [2, 3]


def test_clear_deletes_the_newest_first_and_names_the_folder(tmp_path, monkeypatch):
    deleted = []

    def delete(manager, step):
        deleted.append(step)
        raise PermissionError(f"cannot delete {step}")

    with saved(tmp_path, 2, 4) as checkpoints:
        monkeypatch.setattr(ocp.CheckpointManager, "delete", delete)
        with pytest.raises(ValueError, match="^out: cannot write in .*cannot delete 4"):
            checkpoints.clear()
    assert deleted == [4]


def test_errors_that_are_not_of_files_are_not_reported_as_a_full_disk(tmp_path):
    with pytest.raises(ValueError, match="^no file$"), writing(tmp_path):
        raise ValueError("no file")
    full = "Failed to write: No space left on device [os_error_code='28']"
    with pytest.raises(ValueError, match="^out: .*make room"), writing(tmp_path):
        raise ValueError(full)


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
    with pytest.raises(ValueError, match=r"4 cannot be read; .*step=2\) .* 2\), or st"):
        checkpoints.notes()
    damage(tmp_path / "2" / "notes")
    checkpoints.clear(after=2)
    with pytest.raises(ValueError, match="2 cannot be read; start again .*--restart"):
        checkpoints.notes()


def test_notes_with_one_letter_changed_are_refused(tmp_path):
    with Checkpoints(tmp_path) as checkpoints:
        checkpoints.save(4, STATE, {"vocabulary": ["a", "b"], "place": {3: (1, 2)}})
        checkpoints.wait()
        assert checkpoints.notes()["place"] == {"3": [1, 2]}
        path = tmp_path / "4" / "notes" / "metadata"
        path.write_text(path.read_text().replace('"a"', '"x"'))
        with pytest.raises(ValueError, match="the bytes of its notes are not those"):
            checkpoints.notes()
        with pytest.raises(ValueError, match="the bytes of its notes are not those"):
            checkpoints.state(like=LIKE)


READ_STATE = """
import sys
from types import SimpleNamespace
import jax.numpy as jnp
from scanrnn.training import Checkpoints
like = {"weights": jnp.zeros(100), "many": [jnp.zeros(n) for n in range(1, 60)]}
Checkpoints(sys.argv[1]).state(like)
"""


@pytest.mark.slow
def test_checkpoint_whose_state_is_damaged_says_so_and_the_way_out(tmp_path):
    checkpoints = Checkpoints(tmp_path)
    for step in (2, 4):
        many = [jnp.ones(n) for n in range(1, 60)]
        checkpoints.save(step, {"weights": jnp.ones(100), "many": many}, {})
    checkpoints.close()
    # This byte is in the index of the arrays, so the read of each array fails.
    for path in (tmp_path / "4" / "state" / "d").iterdir():
        data = bytearray(path.read_bytes())
        data[len(data) // 2] ^= 255
        path.write_bytes(data)
    # Another process, because Orbax may log errors after a failed read.
    process = subprocess.run(
        [sys.executable, "-c", READ_STATE, str(tmp_path)],
        capture_output=True,
        text=True,
    )
    wanted = (
        "ValueError: the checkpoint of step 4 cannot be read; go on from the one "
        "before it with resume(..., step=2) (command: --resume-from 2), or start again "
        "in an empty folder (command: --restart) "
        f"({tmp_path / '4'}: "
    )
    # After the error, asyncio may log other failed reads.
    lines = process.stderr.splitlines()
    (error,) = (line for line in lines if line.startswith(wanted))
    assert len(error) < 500 and "loop is closed" not in process.stderr


def test_checkpoint_with_one_byte_changed_is_refused(tmp_path):
    like = {"w": jnp.arange(3000.0)}
    checkpoints = Checkpoints(tmp_path)
    checkpoints.save(1, like, {})
    checkpoints.wait()
    good = _checksums.of_arrays(like)
    assert checkpoints.state(like)["w"][7] == 7.0
    spoiled = {"w": like["w"].at[7].set(-7.0)}
    checkpoints.save(2, spoiled, {})
    checkpoints.wait()
    # As if a disk had changed the array: the checksum is that of the saved array.
    notes = tmp_path / "2" / "notes" / "metadata"
    text = notes.read_text()
    spoiled_sum = str(_checksums.of_arrays(spoiled)["['w']"])
    assert spoiled_sum in text
    notes.write_text(text.replace(spoiled_sum, str(good["['w']"])))
    with pytest.raises(ValueError, match=r"2 cannot .* the bytes of \['w'\] are"):
        Checkpoints(tmp_path).state(like)


def test_checkpoint_of_another_program_is_refused(tmp_path):
    with ocp.CheckpointManager(tmp_path, item_names=("state", "notes")) as manager:
        items = ocp.args.Composite(
            state=ocp.args.StandardSave({"w": jnp.ones(2)}),
            notes=ocp.args.JsonSave({"step": 3}),
        )
        manager.save(3, args=items)
    with pytest.raises(ValueError, match="3 cannot be read.* it was not written by"):
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


def test_reader_leaves_the_checkpoint_that_is_being_written(tmp_path):
    with Checkpoints(tmp_path) as writer:
        writer.save(1, STATE, {"position": 1})
        writer.wait()
        # Orbax gives such a name to a folder that it is writing.
        (tmp_path / "2.orbax-checkpoint-tmp").mkdir()
        reader = Checkpoints(tmp_path)
        assert reader.notes() == {"position": 1}
        reader.close()
        assert (tmp_path / "2.orbax-checkpoint-tmp").is_dir()
    with Checkpoints(tmp_path) as writer:
        writer.lock()  # no other process can be writing now
        assert writer.latest() == 1
        writer.save(2, STATE, {"position": 2})
    assert not (tmp_path / "2.orbax-checkpoint-tmp").exists()


def test_reader_goes_on_with_a_newer_checkpoint_where_one_is_replaced(tmp_path):
    writer, reader = saved(tmp_path, 1), Checkpoints(tmp_path)
    asked = []

    def like(notes):
        """The training run goes on meanwhile."""
        asked.append(notes["position"])
        if len(asked) == 1:
            for step in (2, 3):
                writer.save(step, STATE, {"position": step})
            writer.wait()
        return LIKE

    notes, _ = reader.load(like)
    assert notes == {"position": 3} and asked == [1, 3]


def test_checkpoint_of_a_step_is_read_and_later_ones_are_cleared(tmp_path):
    checkpoints = saved(tmp_path, 2, 4)
    assert checkpoints.notes(step=2) == {"position": 2}
    with pytest.raises(ValueError, match="step: got 3, but the checkpoints .* 2 and 4"):
        checkpoints.notes(step=3)
    checkpoints.clear(after=2)
    assert checkpoints.steps() == [2]


HOLD = """
import sys
from types import SimpleNamespace
from scanrnn.training import Checkpoints
checkpoints = Checkpoints(sys.argv[1])
checkpoints.lock()
print("held", flush=True)
sys.stdin.read()
"""


@pytest.mark.slow
def test_folder_is_locked_for_one_process_until_it_is_gone(tmp_path):
    mine = Checkpoints(tmp_path)
    with subprocess.Popen(
        [sys.executable, "-c", HOLD, str(tmp_path)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    ) as other:
        assert other.stdout.readline() == "held\n"
        assert mine.latest() is None  # reading needs no lock
        refused = f"in use by process {other.pid} on .*--out"
        with pytest.raises(ValueError, match=refused):
            mine.save(1, STATE, {})
        other.kill()
    mine.save(1, STATE, {})
    with pytest.raises(ValueError, match="in use by this process; close the"):
        Checkpoints(tmp_path).lock()
    mine.close()
    Checkpoints(tmp_path).lock()


@pytest.mark.parametrize("late", [True, False])
def test_late_complaints_of_a_failed_read_alone_are_dropped(late, monkeypatch):
    said, log = [], logging.getLogger("asyncio")
    monkeypatch.setattr(sys, "unraisablehook", said.append)
    monkeypatch.setattr(log, "filters", [])
    error = Exception("Encountered error while reading array index" if late else "mine")
    with pytest.raises(ValueError, match="read"), without_late_complaints():
        raise ValueError("read")
    sys.unraisablehook(SimpleNamespace(exc_value=error))
    assert len(said) == (not late)
    info = (Exception, error, None)
    record = log.makeRecord("asyncio", logging.ERROR, "", 0, "never", (), info)
    assert bool(log.filter(record)) == (not late)
    before = sys.unraisablehook
    with without_late_complaints():
        pass
    assert sys.unraisablehook is before and len(log.filters) == 1
