"""Convert a traced program to an ONNX model, with a rule for each primitive."""

from scanrnn.serving._onnx.convert import convert as convert
