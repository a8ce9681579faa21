"""Which cases of a test are quick. The others are marked slow."""

from collections.abc import Iterable

import pytest

# For tests that took three seconds or more in total: one case in this many is quick.
ONE_IN = {
    "test_accelerate.py": {
        "test_accelerated_function_has_the_same_results_and_gradients": 3,
    },
    "test_advise.py": {
        "test_kernel_takes_the_features_that_its_memory_holds": 3,
        "test_persistent_mode_of_cudnn_has_its_own_rules": 3,
        "test_sizes_that_do_not_fit_are_named": 2,
    },
    "test_affine.py": {
        "test_loop_in_parallel_equals_lax_scan": 2,
    },
    "test_affine_entries.py": {
        "test_loop_that_enters_by_sums_equals_lax_scan": 2,
    },
    "test_benchmark_device.py": {
        "test_estimates_of_loops_are_near_the_times_of_a_gpu": 3,
    },
    "test_benchmark_parallel.py": {
        "test_ways_to_run_a_loop_give_the_same": 4,
    },
    "test_cells.py": {
        "test_a_cell_without_biases_is_that_of_zero_biases": 3,
        "test_a_step_takes_any_batch_axes": 4,
    },
    "test_cells_conv.py": {
        "test_saturated_gates_have_finite_values_and_gradients": 3,
    },
    "test_cells_dtypes.py": {
        "test_half_params_compute_in_float32": 2,
        "test_half_precision_is_for_gemm_operands_alone": 2,
    },
    "test_cells_extremes.py": {
        "test_large_inputs_have_finite_values_and_gradients": 4,
    },
    "test_cells_init.py": {
        "test_init_gives_every_param_in_the_dtype_asked_for": 3,
    },
    "test_cells_libraries.py": {
        "test_cell_equals_the_library_in_values_and_gradients": 3,
    },
    "test_cells_linear.py": {
        "test_an_lru_starts_finite_up_to_the_unit_circle": 2,
    },
    "test_cells_noise.py": {
        "test_recurrent_dropout_equals_the_oracle": 2,
    },
    "test_cells_plan.py": {
        "test_a_step_of_training_runs_the_gemms_of_the_table": 2,
    },
    "test_chunkwise.py": {
        "test_delta_rule_equals_lax_scan": 4,
    },
    "test_executors_again.py": {
        "test_chunks_made_again_equal_lax_scan": 4,
        "test_second_derivative_sees_a_rule_once": 2,
        "test_what_cannot_be_made_at_once_is_made_again_step_by_step": 2,
    },
    "test_executors_blocks.py": {
        "test_blocks_are_as_exact_as_lax_scan": 2,
        "test_blocks_equal_lax_scan": 2,
    },
    "test_executors_captured.py": {
        "test_captured_arrays_of_a_kernel_give_what_lax_scan_gives": 4,
        "test_flag_of_each_step_is_for_the_whole_batch": 2,
    },
    "test_executors_heads.py": {
        "test_heads_equal_lax_scan": 4,
        "test_heads_in_bfloat16_are_as_exact_as_lax_scan": 2,
        "test_heads_of_an_einsum_equal_lax_scan": 3,
    },
    "test_executors_inplace.py": {
        "test_gradient_under_shard_map_on_one_device_equals_lax_scan": 3,
        "test_late_writes_are_all_written": 3,
        "test_linear_function_has_the_derivatives_of_its_forward": 3,
        "test_no_loop_copies_an_array_of_all_steps": 4,
        "test_temporary_memory_is_less_than_that_of_lax_scan": 2,
    },
    "test_executors_lanes.py": {
        "test_lanes_equal_lax_scan": 2,
        "test_lanes_of_axes_in_any_order_equal_lax_scan": 4,
    },
    "test_executors_lowered.py": {
        "test_choices_and_copies_run_beside_products": 2,
    },
    "test_executors_noise.py": {
        "test_noise_in_a_kernel_is_that_of_lax_scan": 3,
    },
    "test_executors_normed.py": {
        "test_norm_in_pieces_equals_lax_scan": 3,
        "test_norm_in_pieces_of_any_length_equals_lax_scan": 2,
        "test_norm_in_pieces_with_policy_equals_lax_scan": 2,
        "test_piece_is_a_divisor_of_the_length": 2,
    },
    "test_executors_slices.py": {
        "test_slices_equal_lax_scan": 2,
        "test_slices_may_divide_the_operands_of_products": 2,
        "test_slices_multiply_in_parts": 3,
    },
    "test_executors_states.py": {
        "test_chunks_equal_lax_scan": 3,
        "test_parts_of_states_equal_lax_scan": 3,
    },
    "test_executors_stopped.py": {
        "test_results_of_slices_that_stop_are_nan": 2,
    },
    "test_executors_unused.py": {
        "test_unused_outputs_leave_all_gradients_as_they_are": 3,
    },
    "test_executors_written.py": {
        "test_executor_from_outside_equals_lax_scan": 3,
    },
    "test_export_faults.py": {
        "test_integers_of_every_size_are_computed_as_in_jax": 4,
        "test_weights_fit_a_cell_with_other_starting_values": 3,
    },
    "test_export_onnx.py": {
        "test_a_planned_loop_goes_out_as_it_was_planned": 2,
        "test_every_cell_is_the_same_in_onnxruntime": 4,
        "test_layers_are_the_same_by_the_operators_that_are_wanted": 6,
        "test_lengths_and_carries_come_in_and_go_out": 2,
        "test_primitive_is_the_same_in_onnxruntime": 6,
    },
    "test_export_stablehlo.py": {
        "test_lengths_and_carries_come_in_and_go_out": 3,
        "test_the_batch_alone_may_be_open": 4,
    },
    "test_fission.py": {
        "test_loops_one_after_the_other_equal_one_loop": 6,
        "test_split_loops_are_right_under": 2,
    },
    "test_interop_fuzz.py": {
        "test_junk_is_refused": 3,
    },
    "test_interop_libraries.py": {
        "test_equinox_cells_come_over_and_back": 2,
        "test_the_flat_vector_of_jax_comes_over_and_back": 2,
        "test_torch_layers_and_ours_with_their_weights_are_equal": 6,
        "test_torch_layers_take_our_weights_and_give_them_back": 3,
    },
    "test_interop_options.py": {
        "test_a_keras_gru_without_biases_is_read_as_it_was_made": 3,
        "test_the_activation_of_a_flax_cell_is_read": 2,
    },
    "test_layers_foreign.py": {
        "test_every_output_of_a_tree_is_turned_and_blanked": 2,
        "test_outputs_may_be_a_tree_and_a_given_carry_is_taken": 3,
    },
    "test_layers_one_step.py": {
        "test_a_step_is_the_cells_with_the_weights_of_its_layer": 6,
        "test_linen_cells_of_flax_start_and_step_as_flax": 2,
    },
    "test_layers_wavefront.py": {
        "test_layers_side_by_side_give_what_they_give_one_by_one": 2,
    },
    "test_linen.py": {
        "test_a_changed_import_draws_the_same_weights_and_runs_alike": 5,
        "test_call_arguments_mean_what_flax_means": 6,
        "test_every_nnx_layer_has_a_linen_twin": 5,
        "test_lifted_transforms_take_a_layer": 2,
        "test_sequences_equal_those_of_the_twin": 2,
    },
    "test_machines.py": {
        "test_program_of_a_machine_equals_lax_scan": 4,
        "test_program_of_several_devices_equals_lax_scan": 2,
    },
    "test_nnx.py": {
        "test_call_arguments_mean_what_flax_means": 2,
        "test_layer_equals_flax": 2,
    },
    "test_nnx_flax_cells.py": {
        "test_a_cell_with_a_state_equals_flax": 2,
        "test_our_bidirectional_equals_that_of_flax": 2,
    },
    "test_nnx_sequences.py": {
        "test_a_mask_equals_the_steps_that_count_alone": 3,
        "test_all_carries_are_those_after_each_step": 5,
        "test_lengths_and_segments_may_be_constants_of_what_is_traced": 2,
        "test_lengths_equal_each_sequence_alone": 5,
        "test_lengths_of_any_integers_are_not_promoted": 2,
        "test_no_gradient_comes_from_padding_though_it_is_nan": 3,
        "test_resets_come_before_the_step": 2,
        "test_segments_equal_each_alone": 6,
        "test_zero_padding_and_any_batch_axes": 3,
    },
    "test_nnx_transforms.py": {
        "test_export_takes_symbolic_batch_and_time": 2,
        "test_raw_jax_transforms_take_a_layer": 3,
    },
    "test_parallel_scans.py": {
        "test_scan_of_narrow_steps_is_that_of_others": 3,
        "test_scan_of_one_factor_equals_that_of_many": 3,
        "test_scan_whose_values_are_padded_is_the_scan_whose_values_are_joined": 3,
        "test_scan_with_factors_of_zero_has_the_derivatives_of_lax_scan": 2,
    },
    "test_planner_checkpoints.py": {
        "test_checkpoint_means_what_its_author_says": 3,
    },
    "test_planner_corners.py": {
        "test_carries_that_change_places_equal_lax_scan": 2,
        "test_carry_handed_on_from_slot_to_slot_equals_lax_scan": 2,
        "test_custom_jvp_in_the_step_equals_lax_scan": 3,
    },
    "test_planner_faults.py": {
        "test_function_with_derivatives_for_some_operands_equals_lax_scan": 2,
        "test_padding_with_a_value_that_moves_equals_lax_scan": 3,
    },
    "test_planner_features.py": {
        "test_features_first_equals_lax_scan": 2,
    },
    "test_planner_kept.py": {
        "test_gradients_by_kept_values_are_those_of_lax_scan": 4,
    },
    "test_planner_narrowed.py": {
        "test_a_carry_that_is_read_in_part_equals_lax_scan": 3,
        "test_second_derivatives_by_parts_of_a_carry_equal_lax_scan": 2,
    },
    "test_planner_nested.py": {
        "test_gradients_by_numbers_that_vmap_leaves_alone_equal_lax_scan": 2,
        "test_programs_that_cannot_be_batched_equal_lax_scan": 3,
    },
    "test_planner_oracle.py": {
        "test_chunked_scan_equals_lax_scan": 2,
        "test_each_pass_can_be_left_out": 3,
        "test_residual_policy_equals_lax_scan": 6,
        "test_scan_equals_lax_scan": 2,
        "test_short_sequence_equals_lax_scan": 2,
    },
    "test_planner_random.py": {
        "test_noise_is_made_again_alike": 2,
    },
    "test_planner_refused.py": {
        "test_step_whose_derivative_raises_an_error_runs_forward": 4,
    },
    "test_planner_slopes.py": {
        "test_derivative_from_an_output_is_as_accurate_as_that_of_jax": 2,
    },
    "test_planner_strangers.py": {
        "test_empty_batch_gives_empty_results": 2,
        "test_memories_run_where_ranks_are_not_promoted": 4,
    },
    "test_planner_transforms.py": {
        "test_transform_of_scan_equals_that_of_lax_scan": 6,
    },
    "test_scan_values.py": {
        "test_values_in_chunks_are_those_of_lax_scan": 2,
    },
    "test_scan_weak_types.py": {
        "test_values_and_gradients_of_weak_numbers_have_the_types_of_lax_scan": 2,
    },
    "test_selfcheck.py": {
        "test_selfcheck_notes_a_cell_that_cannot_have_the_size": 2,
    },
    "test_training_run.py": {
        "test_run_learns": 2,
        "test_run_names_the_curves_only_where_they_are_drawn": 2,
    },
    "test_training_same_run.py": {
        "test_auto_is_what_the_run_was_started_with": 2,
    },
    "test_training_step.py": {
        "test_two_layer_lstm_trains_in_half_precision": 2,
    },
}


def one_in(count: int, values: Iterable, ids: Iterable[str] = ()) -> list:
    """Parameters of a test: one in `count` is quick, and the others are slow."""
    names = [*ids]
    return [
        pytest.param(
            value,
            id=names[i] if names else None,
            marks=[pytest.mark.slow] if i % count else [],
        )
        for i, value in enumerate(values)
    ]


def mark_slow(items: Iterable[pytest.Item]) -> None:
    """Mark as slow the cases that `ONE_IN` leaves out, unless they are slow already."""
    seen: dict[tuple, int] = {}
    for item in items:
        name = getattr(item, "originalname", "")
        count = ONE_IN.get(item.path.name, {}).get(name)
        if count is None or item.get_closest_marker("slow"):
            continue
        index = seen[item.path, name] = seen.get((item.path, name), -1) + 1
        if index % count:
            item.add_marker(pytest.mark.slow)
