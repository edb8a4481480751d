"""Send the same tensors through klms and through OpenFL's own pipelines: bytes of messages, error and seconds.

    python beside_eden.py --data digits.npz --out openfl.json

The tensors are the change of a small network in an epoch of training, and normal draws. Every tensor is sent as a
serialised protobuf message of OpenFL and read from that message again. The error is relative to the energy of the
tensors. The messages of klms and Eden are unbiased, so averages over collaborators have less error; the messages of STC
and KC are biased.
"""

import argparse
import io
import json
import time
from contextlib import redirect_stdout
from pathlib import Path

import numpy as np
import torch
from federation import Images, Runner
from openfl.pipelines import EdenPipeline, KCPipeline, STCPipeline, TensorCodec
from openfl.protocols import base_pb2, utils
from openfl.utilities import TensorKey

from klms.openfl import Pipeline

PIPELINES = {
    "klms, 4 bits": lambda: Pipeline(4),
    "Eden, 4 bits": lambda: EdenPipeline(n_bits=4),
    "klms, 2 bits": lambda: Pipeline(2),
    "Eden, 2 bits": lambda: EdenPipeline(n_bits=2),
    "KC, 6 clusters": lambda: KCPipeline(n_clusters=6),
    "klms, 1 bit": lambda: Pipeline(1),
    "Eden, 1 bit": lambda: EdenPipeline(n_bits=1),
    "STC, a tenth of the entries": lambda: STCPipeline(p_sparsity=0.1),
    "klms, 0.3 bits": lambda: Pipeline(0.3),
}


def difference_of_training(data):
    """Return the change of the network in an epoch, after a first epoch that does not count."""
    torch.manual_seed(0)
    runner = Runner(Images(data, 0, 3, 6000))
    runner.train_(runner.data_loader.get_train_loader())
    before = runner.get_tensor_dict()
    before = {name: np.array(tensor) for name, tensor in before.items() if name.startswith("model")}
    runner.train_(runner.data_loader.get_train_loader())
    after = runner.get_tensor_dict()
    return {name: after[name] - tensor for name, tensor in before.items()}


def sent(pipeline, name, tensor):
    """Return the length of the message for a tensor, and the tensor that the other side reads."""
    codec = TensorCodec(pipeline)
    key, data, metadata = codec.compress(TensorKey(name, "hospital", 1, False, ("delta", "trained")), tensor)
    message = utils.construct_named_tensor(key, data, metadata, lossless=False).SerializeToString()
    read = base_pb2.NamedTensor.FromString(message)
    metadata = [
        {"int_to_float": one.int_to_float, "int_list": one.int_list, "bool_list": one.bool_list}
        for one in read.transformer_metadata
    ]
    key = TensorKey(read.name, "hospital", read.round_number, read.report, tuple(read.tags))
    return len(message), codec.decompress(key, read.data_bytes, metadata)[1]


def measured(pipeline, tensors):
    """Return the bytes, relative squared error and seconds of sending all tensors through a pipeline."""
    for name, tensor in tensors.items():  # so that compilation is not timed
        sent(pipeline, name, tensor)
    start = time.perf_counter()
    messages = {name: sent(pipeline, name, tensor) for name, tensor in tensors.items()}
    seconds = time.perf_counter() - start
    lost = sum(np.square(messages[name][1] - tensor).sum() for name, tensor in tensors.items())
    error = lost / sum(np.square(tensor).sum() for tensor in tensors.values())
    return {
        "bytes": sum(size for size, _ in messages.values()),
        "error": float(f"{error:.4g}"),
        "seconds": round(seconds, 3),
    }


def main():
    """Print a table, one line for each set of tensors and pipeline, and write it as JSON."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--data", required=True)
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    torch.set_num_threads(1)
    draws = np.random.default_rng(0).normal(size=(500, 1000)).astype(np.float32)
    sets = {"an epoch of LeNet": difference_of_training(options.data), "normal draws": {"draws": draws}}
    print("| tensors | pipeline | bytes | x smaller | relative squared error | seconds |\n" + "| --- " * 6 + "|")
    found = {}
    for what, tensors in sets.items():
        size = 4 * sum(tensor.size for tensor in tensors.values())
        found[what] = {"float32 bytes": size}
        for name, pipeline in PIPELINES.items():
            with redirect_stdout(io.StringIO()):  # Eden prints its settings
                made = pipeline()
            row = found[what][name] = measured(made, tensors)
            numbers = f"{row['bytes']:,} | {size / row['bytes']:.1f} | {row['error']:.2g} | {row['seconds']:.2f}"
            print(f"| {what} | {name} | {numbers} |", flush=True)
    if options.out:
        options.out.write_text(json.dumps(found, indent=1) + "\n")


if __name__ == "__main__":
    main()
