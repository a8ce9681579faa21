"""Options of layers of another type, in NNX and in Linen."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

import scanrnn

D, H = 3, 4
KEY = jax.random.key(0)
XS = jnp.ones([2, 5, D])
FLAGS = ["return_carry", "time_major", "reverse", "keep_order", "zero_padding"]


def of_nnx(**options):
    return scanrnn.nnx.LSTM(D, H, rngs=nnx.Rngs(0), **options)


def of_linen(**options):
    return scanrnn.linen.LSTM(H, **options).init_with_output(KEY, XS)


@pytest.mark.parametrize("make", [of_nnx, of_linen])
@pytest.mark.parametrize(
    "name", ["bidirectional", "highway", "deterministic", *sorted(FLAGS)]
)
def test_an_option_is_true_or_false_and_no_text(make, name):
    with pytest.raises(TypeError, match=f"^RNN: {name} must be True or.* got 'no'"):
        make(**{name: "no"})


@pytest.mark.parametrize(
    "name", ["deterministic", "return_all_carries", "include_initial", *FLAGS]
)
def test_an_argument_of_a_call_is_true_or_false_and_no_text(name):
    with pytest.raises(TypeError, match=f"^RNN: {name} must be True or.* got 'no'"):
        of_nnx()(XS, **{name: "no"})


def test_booleans_of_numpy_are_taken():
    rnn = of_nnx(return_carry=np.True_)
    assert rnn(XS, deterministic=np.bool_(1))[1].shape == (2, 5, H)


@pytest.mark.parametrize("make", [of_nnx, of_linen])
@pytest.mark.parametrize("name", ["kernel_init", "recurrent_kernel_init", "bias_init"])
def test_an_initializer_of_another_form_is_refused_by_name(make, name):
    with pytest.raises(TypeError, match=rf"{name} must be a function of \(key, shape"):
        make(**{name: lambda key, shape: jnp.zeros(shape)})
    with pytest.raises(ValueError, match=rf"lstm: {name} returned .* shape \(1, 1\)"):
        make(**{name: lambda key, shape, dtype: jnp.ones((1, 1), dtype)})


@pytest.mark.parametrize(
    "room, make",
    [(scanrnn.nnx, of_nnx), (scanrnn.linen, lambda: scanrnn.linen.LSTM(H))],
)
def test_wrong_halves_are_refused_when_the_layer_is_made(room, make):
    with pytest.raises(TypeError, match="^Bidirectional: backward_rnn is None, want"):
        room.Bidirectional(make(), None)
    with pytest.raises(TypeError, match="function of .* as jnp.add, .*; got 'sum'"):
        room.Bidirectional(make(), make(), merge_fn="sum")


@pytest.mark.parametrize("shape", [4, (), "ab", np.ones([2, D])])
def test_a_first_carry_is_made_for_a_shape(shape):
    one = scanrnn.nnx.RNNCell(scanrnn.cells.gru(), D, H, rngs=nnx.Rngs(0))
    other = scanrnn.linen.RNNCell(scanrnn.cells.gru(), H)
    for make in (one.initialize_carry, lambda s: other.initialize_carry(KEY, s)):
        with pytest.raises(TypeError, match="^RNNCell: input_shape must be .* x.shape"):
            make(shape)


@pytest.mark.parametrize("num_layers", [1, 2])
@pytest.mark.parametrize(
    "params", [{"a": {"k": jnp.ones(3)}}, [jnp.ones(3)]], ids=["nested", "list"]
)
def test_a_cell_whose_params_are_no_flat_dict_is_refused(params, num_layers):
    class Nested(scanrnn.cells.Cell):
        def init(self, key, in_features, hidden_features, dtype=jnp.float32):
            return params

        def step(self, params, carry, x):
            return carry, carry

        def initial_carry(self, params, x, dtype=None):
            return jnp.zeros([*x.shape[:-1], H])

    options = {"num_layers": num_layers}
    twin = scanrnn.linen.RNN(Nested(), features=H, **options)
    for make in (
        lambda: scanrnn.nnx.RNN(Nested(), D, H, **options, rngs=nnx.Rngs(0)),
        lambda: twin.init(KEY, XS),
        lambda: twin.apply({"params": {"layers_0": params}}, XS),
    ):
        with pytest.raises(TypeError, match=r"init of Nested .*\(3,\).* flat dict of"):
            make()


class Leaky(scanrnn.cells.Cell):
    def init(self, key, in_features, hidden_features, dtype=jnp.float32):
        return {"kernel": jnp.ones([in_features, hidden_features], dtype)}

    def step(self, params, carry, x):
        carry = 0.5 * carry + (x @ params["kernel"]).astype(carry.dtype)
        return carry, carry

    def initial_carry(self, params, x, dtype=None):
        return jnp.zeros([*x.shape[:-1], H], dtype)


class Wide(Leaky):
    def step(self, params, carry, x):
        return super().step(params, carry, x)[0], jnp.ones([*x.shape[:-1], 2 * H])


class WideAndSaid(Wide):
    def out_features(self, hidden_features):
        return 2 * hidden_features


def both_rooms(cell, features, **options):
    inputs = jnp.ones([2, 5, features])
    layer = scanrnn.linen.RNN(cell, features=H, **options)
    yield lambda: layer.init_with_output(KEY, inputs)[0]
    options["rngs"] = nnx.Rngs(0)
    yield lambda: scanrnn.nnx.RNN(cell, features, H, **options)(inputs)


@pytest.mark.parametrize(
    "features, options",
    [(D, {}), (D, {"bidirectional": True}), (H, {"wavefront": True})],
)
def test_an_output_of_another_width_than_the_cell_says_is_refused(features, options):
    wanted = r"^RNN: step of Wide gives 8 .* out_features\(4\) is 4, .*returns 8"
    for make in both_rooms(Wide(), features, num_layers=2, **options):
        with pytest.raises(ValueError, match=wanted):
            make()


def test_an_output_of_the_width_that_the_cell_says_goes_to_the_next_layer():
    for make in both_rooms(WideAndSaid(), D, num_layers=2):
        assert make().shape == (2, 5, 2 * H)


class NoDtype(Leaky):
    def init(self, key, in_features, hidden_features):
        return super().init(key, in_features, hidden_features)


class NoCarryDtype(Leaky):
    def initial_carry(self, params, x):
        return super().initial_carry(params, x)


@pytest.mark.parametrize(
    "cell, options, wanted",
    [
        (NoDtype(), {}, r"init of NoDtype takes \(key, .* with \(key, .*, dtype\)"),
        (NoCarryDtype(), {}, r"initial_carry of NoCarryDtype .* \(params, x, dtype\)"),
        (Leaky(), {"bias_init": jax.nn.initializers.zeros}, "leave bias_init out"),
    ],
)
def test_a_method_of_a_cell_that_takes_other_arguments_is_refused(
    cell, options, wanted
):
    for make in both_rooms(cell, D, **options):
        with pytest.raises(TypeError, match=f"^RNN: .*{wanted}"):
            make()


@pytest.mark.parametrize("call", [{}, {"seq_lengths": jnp.array([5, 4])}])
@pytest.mark.parametrize(
    "step, wanted",
    [
        (lambda carry: carry, "must return a pair .* got one array"),
        (lambda carry: (carry, carry, 1), "must return a pair .* got 3 values"),
        (lambda carry: None, "must return a pair .* got a NoneType"),
        (lambda carry: (carry[..., 1:], carry), r"shape .* returned float32\[2,3\]"),
        (lambda carry: ((carry,), carry), "a carry of the structure of init"),
        (lambda carry: (carry.astype(jnp.bfloat16), carry), "returned bfloat16"),
    ],
)
def test_a_wrong_result_of_a_step_is_refused_with_and_without_lengths(
    call, step, wanted
):
    class Wrong(Leaky):
        def step(self, params, carry, x):
            return step(carry)

    rnn = scanrnn.nnx.RNN(Wrong(), D, H, rngs=nnx.Rngs(0))
    with pytest.raises(TypeError, match=f"^scan: f {wanted}|^scan: f must.*{wanted}"):
        rnn(XS.astype(jnp.float32), **call)


@pytest.mark.parametrize("make", [of_nnx, of_linen])
@pytest.mark.parametrize("options", [{"dropout": 0.5}, {"residual": True}])
def test_a_warning_names_the_line_of_the_user(make, options):
    with pytest.warns(UserWarning, match="does nothing") as told:
        make(**options)
    assert {warning.filename for warning in told} == {__file__}


@pytest.mark.parametrize("make", [of_nnx, of_linen])
@pytest.mark.parametrize(
    "theirs, ours",
    [
        ("units", "hidden_features in scanrnn.nnx, features in scanrnn.linen"),
        ("hidden_size", "hidden_features in scanrnn.nnx, features in scanrnn.linen"),
        ("input_size", "in_features in scanrnn.nnx; scanrnn.linen reads it"),
        ("batch_first", "time_major here, which is False by default"),
        ("bias", "use_bias here"),
    ],
)
def test_an_option_of_another_library_is_answered_with_ours(make, theirs, ours):
    with pytest.raises(TypeError, match=rf"^LSTM: got {theirs} \({ours}"):
        make(**{theirs: 3})


def test_sizes_by_position_as_in_torch_are_refused_with_what_is_wanted():
    with pytest.raises(
        TypeError,
        match="^LSTM: got 2 arguments by .*, want features; .*from the inputs",
    ):
        scanrnn.linen.LSTM(128, 256)
    with pytest.raises(
        TypeError, match="^LSTM: got 3 .*, want in_features and .* such as num_layers="
    ):
        scanrnn.nnx.LSTM(D, H, 2, rngs=nnx.Rngs(0))


@pytest.mark.parametrize("room", [scanrnn.nnx, scanrnn.linen])
@pytest.mark.parametrize("name", ["RNN", "RNNCell"])
@pytest.mark.parametrize(
    "cell, options, call",
    [
        (scanrnn.cells.gru(), {"norm": "ba2016"}, r"cells\.gru\(norm='ba2016'\)"),
        (scanrnn.cells.lstm(), {"dtype": jnp.bfloat16}, r"cells\.lstm\(dtype=\.\.\.\)"),
        (scanrnn.cells.residual(scanrnn.cells.mgu()), {"norm": "ba2016"}, "cells.mgu"),
    ],
)
def test_an_option_of_the_cell_is_answered_with_the_call(
    room, name, cell, options, call
):
    wanted = rf"^{name}: got .*, which the cell takes: write {name}\(scanrnn.*{call}"
    with pytest.raises(TypeError, match=wanted):
        getattr(room, name)(cell, **options)
    with pytest.raises(TypeError, match=wanted):
        getattr(room, name)(cell=cell, **options)


@pytest.mark.parametrize("room", [scanrnn.nnx, scanrnn.linen])
def test_an_option_that_nobody_takes_is_answered_with_all_options(room):
    with pytest.raises(TypeError, match="^RNN: got hiden, want options of .*num_layer"):
        room.RNN(scanrnn.cells.gru(), hiden=3)


def test_an_option_of_a_cell_of_flax_is_answered_with_its_call():
    cell = nnx.LSTMCell(D, H, rngs=nnx.Rngs(0))
    with pytest.raises(TypeError, match=r"write RNN\(LSTMCell\(dtype='bfloat16'\), "):
        scanrnn.nnx.RNN(cell, dtype="bfloat16")


@pytest.mark.parametrize("name", ["seq_lengths", "mask", "segment_ids", "resets"])
@pytest.mark.parametrize("value", ["ab", [[1], [2, 3]], [None, 1], {"a": 1}])
def test_what_says_which_steps_count_is_one_array(name, value):
    with pytest.raises(TypeError, match=f"^RNN: {name} must be one array of .* got "):
        of_nnx()(XS, **{name: value})


def test_numbers_that_jax_would_wrap_are_refused():
    """Arrays of 64 bits of NumPy lose their upper half, outside of JAX's x64 mode."""
    for name in ("seq_lengths", "segment_ids"):
        with pytest.raises(ValueError, match=f"RNN: {name} has a number that is too"):
            of_nnx()(XS, **{name: [2**64, 1]})
    ids = np.full([2, 5], 2**32 + 1)
    with jax.enable_x64(False):
        xs, rnn = jnp.ones([2, 5, D]), of_nnx()
        with pytest.raises(ValueError, match="4294967297, which does not fit into int"):
            rnn(xs, segment_ids=ids)
        for lengths in ([2**32 + 3, 1], np.array([2**32 + 3, 1])):
            with pytest.raises(ValueError, match="RNN: seq_lengths has "):
                rnn(xs, seq_lengths=lengths)


def test_inputs_without_axes_are_refused_before_weights_are_made():
    with pytest.raises(ValueError, match=r"inputs has shape \(\), want at least"):
        scanrnn.linen.LSTM(H).init(KEY, 1.0)
