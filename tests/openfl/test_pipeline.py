"""The pipeline in OpenFL's own codec, messages, aggregator and collaborators."""

import numpy as np
import pytest

from klms.errors import InvalidArgument, KLMSError

pytest.importorskip("openfl", reason="needs OpenFL: run `make openfl`, which installs it apart and runs its tests")

from openfl.component import Aggregator, RandomGroupedAssigner
from openfl.component import Collaborator as StockCollaborator
from openfl.interface.aggregation_functions import WeightedAverage
from openfl.pipelines import TensorCodec
from openfl.protocols import base_pb2, utils
from openfl.utilities import TensorKey

from klms.openfl import Collaborator, Pipeline

pytestmark = pytest.mark.filterwarnings("ignore:`newshape` keyword:DeprecationWarning")  # of OpenFL's own pipeline
KEY = TensorKey("weight", "hospital", 1, False, ("delta", "trained"))


def sent(pipeline, array):
    """Return the bytes of OpenFL's message with a tensor, and what the other side reads."""
    codec = TensorCodec(pipeline)
    key, data, metadata = codec.compress(KEY, array)
    message = utils.construct_named_tensor(key, data, metadata, lossless=False).SerializeToString()
    tensor = base_pb2.NamedTensor.FromString(message)
    metadata = [
        {"int_to_float": one.int_to_float, "int_list": one.int_list, "bool_list": one.bool_list}
        for one in tensor.transformer_metadata
    ]
    key = TensorKey(tensor.name, "hospital", tensor.round_number, tensor.report, tuple(tensor.tags))
    return message, codec.decompress(key, tensor.data_bytes, metadata)[1]


def error(array, read):
    return float(np.square(read - array).sum() / np.square(array).sum())


@pytest.fixture
def rng():
    return np.random.default_rng(5)


@pytest.mark.parametrize(("bits", "most"), [(0.1, 12), (1, 0.5), (4, 0.006)])
def test_a_tensor_takes_the_bits_that_it_may_take(rng, bits, most):
    array = rng.normal(size=(40, 25, 50)).astype(np.float32)
    message, read = sent(Pipeline(bits), array)
    assert len(message) <= 1.01 * bits * array.size / 8 + 64
    assert read.dtype == np.float32
    assert read.shape == array.shape
    assert error(array, read) < most


@pytest.mark.parametrize("bits", [1, 4])
def test_it_has_less_error_than_openfl_s_eden_in_fewer_bytes(rng, bits):
    pytest.importorskip("torch")
    from openfl.pipelines import EdenPipeline

    array = rng.normal(size=(200, 300)).astype(np.float32)
    ours, read = sent(Pipeline(bits), array)
    theirs, read_by_eden = sent(EdenPipeline(n_bits=bits), array)
    assert len(ours) < len(theirs)
    assert error(array, read) < 0.85 * error(array, read_by_eden)


@pytest.mark.parametrize("shape", [(), (0,), (1,), (511,), (5, 100)])
def test_the_smallest_tensors_stay_unchanged(rng, shape):
    array = np.asarray(rng.normal(size=shape), dtype=np.float32)
    _, read = sent(Pipeline(0.1), array)
    assert read.shape == shape
    assert np.array_equal(read, array)


def test_small_tensors_get_more_bits(rng):
    array = rng.normal(size=1000).astype(np.float32)
    message, read = sent(Pipeline(0.1), array)
    assert len(message) < 512 + 64
    assert error(array, read) < 0.1


def test_equal_tensors_become_equal_bytes_and_others_have_noise_of_their_own(rng):
    array = rng.normal(size=4000).astype(np.float32)
    assert sent(Pipeline(1), array)[0] == sent(Pipeline(1), array.copy())[0]
    reads = []
    for last in range(40):
        array[-1] = last / 100
        reads.append(sent(Pipeline(1), array)[1])
    assert error(array[:-1], np.mean(reads, axis=0)[:-1]) < 2 * error(array, reads[0]) / 40


def test_float64_is_taken_as_openfl_takes_it(rng):
    _, read = sent(Pipeline(4), rng.normal(size=4000))
    assert read.dtype == np.float32


def test_models_that_openfl_saves_lose_nothing(rng):
    model = {"weight": rng.normal(size=(60, 50)).astype(np.float32), "bias": rng.normal(size=50).astype(np.float32)}
    proto = utils.construct_model_proto(model, 3, Pipeline(0.1))
    read, number = utils.deconstruct_model_proto(base_pb2.ModelProto.FromString(proto.SerializeToString()), Pipeline(1))
    assert number == 3
    assert all(np.array_equal(read[name], model[name]) for name in model)


def test_damage_is_an_error_of_klms(rng):
    pipeline = Pipeline(1)
    data, metadata = pipeline.forward(rng.normal(size=4000).astype(np.float32))
    for damaged in (data[:-1], data[:20], bytes(8) + data[8:], b"", data + b"x"):
        with pytest.raises(KLMSError):
            pipeline.backward(damaged, [dict(one) for one in metadata])


@pytest.mark.parametrize("bits", [0, -1, 9, float("nan")])
def test_rates_that_cannot_be_are_told(bits):
    with pytest.raises(InvalidArgument, match="bits_per_parameter"):
        Pipeline(bits)


class Runner:
    """A task runner that adds noise to every parameter."""

    def __init__(self, seed):
        self.rng = np.random.default_rng(seed)

    def set_optimizer_treatment(self, treatment):
        pass

    def get_train_data_size(self):
        return 10

    def get_required_tensorkeys_for_function(self, function, **keywords):
        return [TensorKey("weight", "GLOBAL", 0, False, ("model",))]

    def train(self, col_name, round_num, input_tensor_dict, **keywords):
        step = 0.01 * self.rng.normal(size=input_tensor_dict["weight"].shape)
        trained = np.float32(input_tensor_dict["weight"] + step)
        return {TensorKey("weight", col_name, round_num, False, ("trained",)): trained}, {}


class Connection:
    """A collaborator's connection to an aggregator in the same process."""

    def __init__(self, aggregator, name):
        self.aggregator = aggregator
        self.name = name
        self.sizes = []

    def get_aggregated_tensor(self, tensor_name, round_number, report, tags, require_lossless):
        return self.aggregator.get_aggregated_tensor(
            tensor_name, round_number, report, tuple(tags), require_lossless, requested_by=self.name
        )

    def send_local_task_results(self, round_number, task_name, data_size, named_tensors):
        self.sizes += [len(tensor.data_bytes) for tensor in named_tensors]
        self.aggregator.send_local_task_results(self.name, round_number, task_name, data_size, named_tensors)


def federation(folder, kind, rng):
    """Run three rounds; return the aggregator, and the collaborators with their connections."""
    names = ["one", "two"]
    tasks = {"train": {"function": "train", "kwargs": {}, "aggregation_type": WeightedAverage()}}
    assigner = RandomGroupedAssigner(
        [{"name": "all", "percentage": 1.0, "tasks": ["train"]}],
        tasks=tasks,
        authorized_cols=names,
        rounds_to_train=3,
        selected_task_group="all",
    )
    aggregator = Aggregator(
        "aggregator",
        "federation",
        names,
        str(folder / "init.pbuf"),
        str(folder / "best.pbuf"),
        str(folder / "last.pbuf"),
        assigner,
        rounds_to_train=3,
        compression_pipeline=Pipeline(1),
        initial_tensor_dict={"weight": rng.normal(size=(60, 50)).astype(np.float32)},
        db_store_rounds=9,
        persist_checkpoint=False,
    )
    members = []
    for number, name in enumerate(names):
        connection = Connection(aggregator, name)
        settings = {"use_delta_updates": True, "compression_pipeline": Pipeline(1), "db_store_rounds": 9}
        member = kind(name, "aggregator", "federation", connection, Runner(number), tasks, **settings)
        members.append((member, connection))
    for number in range(3):
        for member, _ in members:
            member.do_task("train", number)
    return aggregator, members


def test_aggregator_and_collaborators_hold_the_same_model_in_every_round(tmp_path, rng):
    aggregator, members = federation(tmp_path, Collaborator, rng)
    for number in range(3):
        key = TensorKey("weight", "aggregator", number, False, ("model",))
        wanted = aggregator.tensor_db.get_tensor_from_cache(key)
        for member, _ in members:
            assert np.array_equal(member.tensor_db.get_tensor_from_cache(key), wanted)
    saved, _ = utils.deconstruct_model_proto(utils.load_proto(str(tmp_path / "last.pbuf")), Pipeline(1))
    assert error(wanted, saved["weight"]) < 0.01


def test_collaborators_send_differences_in_every_round(tmp_path, rng):
    _, members = federation(tmp_path, Collaborator, rng)
    assert all(max(connection.sizes) < 512 + 64 for _, connection in members)


def test_stock_collaborators_do_so_in_the_first_round_alone(tmp_path, rng):
    """If this fails, OpenFL has mended it, and `Collaborator` can go."""
    _, members = federation(tmp_path, StockCollaborator, rng)
    assert all(np.array(connection.sizes)[1:].tolist() == [4 * 3000] * 2 for _, connection in members)


def test_an_unknown_setting_is_refused():
    with pytest.raises(InvalidArgument, match="Pipeline 'bits'; choose one of bits_per_parameter"):
        Pipeline(bits=1)


def test_integers_pass_unchanged_and_complex_numbers_are_refused():
    pipeline = Pipeline(bits_per_parameter=1)
    data, metadata = pipeline.transformers[0].forward(np.arange(1000))
    np.testing.assert_array_equal(pipeline.transformers[0].backward(data, metadata), np.arange(1000, dtype=np.float32))
    with pytest.raises(InvalidArgument, match="only real numbers"):
        pipeline.transformers[0].forward(np.ones(1000, complex))
    with pytest.raises(InvalidArgument, match="must be a number"):
        Pipeline(bits_per_parameter="1")
