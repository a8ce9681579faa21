"""Run exported models in onnxruntime."""

import collections

import numpy as np
import pytest

onnxruntime = pytest.importorskip("onnxruntime")


def session(proto):
    """A function of arrays by name."""
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = 1
    running = onnxruntime.InferenceSession(
        proto.SerializeToString(), options, providers=["CPUExecutionProvider"]
    )
    return lambda **arrays: running.run(None, arrays)


def operators(proto):
    """The number of nodes of each operator, without those in bodies."""
    return collections.Counter(node.op_type for node in proto.graph.node)


def xs(*shape, seed=0):
    return np.random.default_rng(seed).normal(size=shape).astype(np.float32)
