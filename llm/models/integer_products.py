"""Whether this machine multiplies signed 8-bit integers exactly.

AVX2 without VNNI adds pairs of 8-bit products in 16 bits, which saturate: signed weights then give
garbage in ONNX Runtime (0 to 6 % of tokens right), unsigned ones take another path. Asked of the
machine by computing, not of its name.
"""

from __future__ import annotations

from functools import cache

import numpy as np
import onnxruntime as ort
from onnx import TensorProto, helper


@cache
def signed_products_are_exact() -> bool:
    """True where uint8 activations times int8 weights sum up exactly at the extremes."""
    rows, size, out = 4, 128, 32
    graph = helper.make_graph(
        [helper.make_node("MatMulInteger", ["x", "w"], ["y"])],
        "extremes",
        [
            helper.make_tensor_value_info("x", TensorProto.UINT8, [rows, size]),
            helper.make_tensor_value_info("w", TensorProto.INT8, [size, out]),
        ],
        [helper.make_tensor_value_info("y", TensorProto.INT32, [rows, out])],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 21)], ir_version=10)
    session = ort.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"])
    x = np.full((rows, size), 255, np.uint8)
    for value in (127, -127):
        w = np.full((size, out), value, np.int8)
        (product,) = session.run(None, {"x": x, "w": w})
        if not np.array_equal(product, x.astype(np.int64) @ w.astype(np.int64)):
            return False
    return True
