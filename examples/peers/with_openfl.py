"""OpenFL's own pipelines, measured on the model message that OpenFL would send."""

from functools import partial

from openfl.pipelines.eden_pipeline import EdenPipeline
from openfl.pipelines.kc_pipeline import KCPipeline
from openfl.pipelines.pipeline import TransformationPipeline
from openfl.pipelines.stc_pipeline import STCPipeline
from openfl.protocols import base_pb2
from openfl.protocols.utils import construct_model_proto, deconstruct_model_proto
from peer import Arrays, flat, measure, read

SMALL = 50_000
"""Most parameters for which k-means clustering, at some 0.2 milliseconds per parameter, is measured."""


def encode(pipeline: TransformationPipeline, update: Arrays) -> tuple[bytes, int]:
    """Return a serialised model message and its length."""
    message = construct_model_proto(update, 0, pipeline).SerializeToString()
    return message, len(message)


def decode(pipeline: TransformationPipeline, message: bytes) -> Arrays:
    """Return the arrays of a serialised model message."""
    proto = base_pb2.ModelProto()
    proto.ParseFromString(message)
    return deconstruct_model_proto(proto, pipeline)[0]


def main() -> None:
    """Print a row for every pipeline and setting."""
    pipelines = {f"EdenPipeline, {bits} bits": EdenPipeline(n_bits=bits) for bits in (1, 2, 4)}
    pipelines |= {f"STCPipeline, {share:g}": STCPipeline(p_sparsity=share) for share in (0.01, 0.1)}
    if flat(read()[1][0]).size <= SMALL:
        pipelines["KCPipeline, 6 clusters"] = KCPipeline(n_clusters=6)
    for setting, pipeline in pipelines.items():
        measure("OpenFL", setting, partial(encode, pipeline), partial(decode, pipeline))


main()
