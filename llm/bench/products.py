"""The floor under a forward: the model's 8-bit matrix products alone, on the same weights.

Made from the model's own graph: every MatMulIntegerToFloat, one behind the other, and nothing
between. Reads no clock.
"""

from __future__ import annotations

import math
from pathlib import Path

import numpy as np
import onnx
import onnxruntime as ort
from onnx import TensorProto, helper

PRODUCT = "MatMulIntegerToFloat"


def products_only(model: onnx.ModelProto) -> onnx.ModelProto:
    """A graph of the model's products over the same weights.

    Inputs: `x_<width>` uint8 [rows, width] for every width that occurs. Outputs: every product's
    result, because a node that nobody reads is left out.
    """
    weights = {weight.name: weight for weight in model.graph.initializer}
    nodes, outputs, widths = [], [], set()
    used: dict[str, onnx.TensorProto] = {}
    for node in (node for node in model.graph.node if node.op_type == PRODUCT):
        width, size = weights[node.input[1]].dims
        widths.add(width)
        used |= {name: weights[name] for name in node.input[1:]}
        nodes.append(
            helper.make_node(
                PRODUCT, [f"x_{width}", *node.input[1:]], list(node.output), domain=node.domain
            )
        )
        outputs.append(
            helper.make_tensor_value_info(node.output[0], TensorProto.FLOAT, ["rows", size])
        )
    inputs = [
        helper.make_tensor_value_info(f"x_{width}", TensorProto.UINT8, ["rows", width])
        for width in sorted(widths)
    ]
    graph = helper.make_graph(nodes, "products", inputs, outputs, list(used.values()))
    return helper.make_model(graph, opset_imports=model.opset_import, ir_version=model.ir_version)


class Products:
    """Runs the products of the graph in a file, for a number of rows.

    options: those of the session that the figure is to be compared with.
    """

    def __init__(self, graph: Path, options: ort.SessionOptions, num_rows: int) -> None:
        model = products_only(onnx.load(graph, load_external_data=False))
        options.add_session_config_entry(
            "session.model_external_initializers_file_folder_path", str(graph.parent)
        )
        self._session = ort.InferenceSession(
            model.SerializeToString(), options, providers=["CPUExecutionProvider"]
        )
        weights = {weight.name: weight.dims for weight in model.graph.initializer}
        self.weight_bytes = sum(math.prod(weights[n.input[1]]) for n in model.graph.node)
        self.num_products = len(model.graph.node)
        self._binding = self._session.io_binding()
        self._bind(num_rows)

    def run(self) -> None:
        """Compute every product once."""
        self._session.run_with_iobinding(self._binding)

    def _bind(self, num_rows: int) -> None:
        rng = np.random.default_rng(0)
        for given in self._session.get_inputs():
            x = rng.integers(0, 256, (num_rows, given.shape[1])).astype(np.uint8)
            self._binding.bind_cpu_input(given.name, x)
        sizes = {result.name: result.shape[1] for result in self._session.get_outputs()}
        # Nobody reads the results, so all may lie in one place, as warm as the real ones are.
        self._results = np.zeros((num_rows, max(sizes.values())), np.float32)
        for name, size in sizes.items():
            self._binding.bind_output(
                name, "cpu", 0, np.float32, (num_rows, size), self._results.ctypes.data
            )
