#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""ONNX Runtime: a small model built here, on the CUDA execution provider, with input and output bound to device memory.
Skipped where the installed ONNX Runtime has no CUDA provider."""

import suite
from suite import pick, require, show, skip

try:
    import numpy
    import onnx
    import onnxruntime
    from onnx import TensorProto, helper, numpy_helper
except ImportError as error:
    skip(f"ONNX Runtime or onnx is not installed ({suite.first_line(error)})")
PROVIDER = "CPUExecutionProvider" if suite.DEVICE == "cpu" else "CUDAExecutionProvider"
if PROVIDER not in onnxruntime.get_available_providers():
    skip(f"this ONNX Runtime {onnxruntime.__version__} has no CUDA provider: "
         f"{' '.join(onnxruntime.get_available_providers())}")


def model():
    rng = numpy.random.default_rng(101)
    weights = {"w1": (16, 3, 3, 3), "b1": (16,), "w2": (16 * 64, 10), "b2": (10,)}
    constants = [numpy_helper.from_array((rng.standard_normal(shape) * 0.1).astype(numpy.float32), name)
                 for name, shape in weights.items()]
    nodes = [
        helper.make_node("Conv", ["x", "w1", "b1"], ["c"], pads=[1, 1, 1, 1]),
        helper.make_node("Relu", ["c"], ["r"]),
        helper.make_node("MaxPool", ["r"], ["p"], kernel_shape=[4, 4], strides=[4, 4]),
        helper.make_node("Flatten", ["p"], ["f"]),
        helper.make_node("Gemm", ["f", "w2", "b2"], ["g"]),
        helper.make_node("Softmax", ["g"], ["y"]),
    ]
    graph = helper.make_graph(nodes, "conv_net", [helper.make_tensor_value_info("x", TensorProto.FLOAT, ["n", 3, 32, 32])],
                              [helper.make_tensor_value_info("y", TensorProto.FLOAT, ["n", 10])], constants)
    made = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9)
    onnx.checker.check_model(made)
    return made.SerializeToString()


def session():
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 3
    settings = {} if suite.DEVICE == "cpu" else {"cudnn_conv_algo_search": "DEFAULT", "use_tf32": "0"}
    return onnxruntime.InferenceSession(model(), options, providers=[(PROVIDER, settings), "CPUExecutionProvider"])


def inference():
    made = session()
    print("providers", *made.get_providers())
    require(PROVIDER in made.get_providers(), "the session runs on the GPU")
    rng = numpy.random.default_rng(102)
    reference = onnxruntime.InferenceSession(model(), providers=["CPUExecutionProvider"])
    for rows in (1, 7, pick(64, 8)):
        x = rng.standard_normal((rows, 3, 32, 32)).astype(numpy.float32)
        y, = made.run(None, {"x": x})
        require(numpy.allclose(y, reference.run(None, {"x": x})[0], atol=1e-4), "the GPU agrees with the CPU")
        show(f"batch of {rows}", y)


def device_memory():
    made = session()
    x = numpy.random.default_rng(103).standard_normal((4, 3, 32, 32)).astype(numpy.float32)
    kind = "cpu" if suite.DEVICE == "cpu" else "cuda"
    binding = made.io_binding()
    binding.bind_ortvalue_input("x", onnxruntime.OrtValue.ortvalue_from_numpy(x, kind, 0))
    binding.bind_output("y", kind, 0)
    made.run_with_iobinding(binding)
    show("bound to the device", binding.copy_outputs_to_cpu()[0])


if __name__ == "__main__":
    print("onnxruntime", onnxruntime.__version__)
    suite.finish("onnxruntime_basic", [inference, device_memory])
