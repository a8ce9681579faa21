"""Serving: layers that run as inputs arrive, and export to ONNX and StableHLO."""

from scanrnn.serving._export import load_stablehlo as load_stablehlo
from scanrnn.serving._export import to_onnx as to_onnx
from scanrnn.serving._export import to_stablehlo as to_stablehlo
from scanrnn.serving._program import Input as Input
from scanrnn.serving._program import step_by_step as step_by_step
from scanrnn.serving._streaming import Streaming as Streaming
