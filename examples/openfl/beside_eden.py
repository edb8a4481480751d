"""Send the same tensors through klms and through OpenFL's Eden: bytes of OpenFL's messages, error and seconds.

    python beside_eden.py --data digits.npz

The tensors are the difference that an epoch of training makes to a small network, and normal draws.
"""

import argparse
import time

import numpy as np
import torch
from federation import Images, Runner
from openfl.pipelines import EdenPipeline, TensorCodec
from openfl.protocols import base_pb2, utils
from openfl.utilities import TensorKey

from klms.openfl import Pipeline


def difference_of_training(data):
    """Return what an epoch changes in the network, after one that is not counted."""
    torch.manual_seed(0)
    runner = Runner(Images(data, 0, 3, 6000))
    runner.train_(runner.data_loader.get_train_loader())
    before = runner.get_tensor_dict()
    before = {name: np.array(tensor) for name, tensor in before.items() if name.startswith("model")}
    runner.train_(runner.data_loader.get_train_loader())
    after = runner.get_tensor_dict()
    return {name: after[name] - tensor for name, tensor in before.items()}


def sent(pipeline, name, tensor):
    """Return the bytes of the message with a tensor, and what the other side reads."""
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


def main():
    """Print one line for each set of tensors and pipeline."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--data", required=True)
    options = parser.parse_args()
    torch.set_num_threads(1)
    draws = np.random.default_rng(0).normal(size=(1000, 1000)).astype(np.float32)
    sets = {"an epoch of LeNet": difference_of_training(options.data), "a million normal draws": {"draws": draws}}
    for what, tensors in sets.items():
        for bits in (1, 2, 4):
            for name, pipeline in {"klms": Pipeline(bits), "eden": EdenPipeline(n_bits=bits)}.items():
                for one, tensor in tensors.items():  # compiles what the first use would wait for
                    sent(pipeline, one, tensor)
                start = time.perf_counter()
                messages = {one: sent(pipeline, one, tensor) for one, tensor in tensors.items()}
                seconds = time.perf_counter() - start
                nbytes = sum(size for size, _ in messages.values())
                lost = sum(np.square(messages[one][1] - tensor).sum() for one, tensor in tensors.items())
                error = lost / sum(np.square(tensor).sum() for tensor in tensors.values())
                print(f"{what}, {name} {bits}: {nbytes:,} bytes, error {error:.4f}, {seconds:.2f} s", flush=True)


if __name__ == "__main__":
    main()
