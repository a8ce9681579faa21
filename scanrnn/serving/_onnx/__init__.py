"""From a traced program to an ONNX model: a rule for every primitive ONNX has."""

from scanrnn.serving._onnx.convert import convert as convert
