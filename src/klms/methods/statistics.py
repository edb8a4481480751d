"""What a round's messages say of themselves, averaged over clients, for the ledger."""

from klms.codec import Decoded, MessageInfo


class MessageStatistics:
    """Running sums over messages; KL, blocks and their bytes exist for messages of the codec."""

    def __init__(self, d: int) -> None:
        self._d = d
        self._count = 0
        self._bits = 0.0
        self._headers = 0
        self._sums = {"kl": 0.0, "block_kl": 0.0, "blocks": 0, "index_bits": 0.0, "block_size_bits": 0.0}
        self._first: MessageInfo | None = None

    def add(self, decoded: Decoded, message_bytes: int) -> None:
        """Take in one decoded message."""
        self._count += 1
        self._bits += 8 * message_bytes / self._d
        header = decoded.header
        if header is not None:
            self._first = self._first or header
            self._headers += 1
            self._sums["kl"] += header.mean_kl * header.blocks / self._d
            self._sums["block_kl"] += header.mean_kl
            self._sums["blocks"] += header.blocks
            self._sums["index_bits"] += 8 * header.index_bytes / self._d
            self._sums["block_size_bits"] += 8 * header.block_size_bytes / self._d

    def means(self) -> dict[str, float]:
        """Return the means by the name that they have in the ledger."""
        found = {"bits_per_parameter": self._bits / self._count}
        if self._first is None:
            return found
        mean = {name: total / self._headers for name, total in self._sums.items()}
        if mean["block_kl"]:  # messages of DP-REC do not report their KL
            found |= {"kl_bits_per_parameter": mean["kl"], "block_kl_bits": mean["block_kl"]}
        return found | {
            "blocks": mean["blocks"],
            "index_bits_per_parameter": mean["index_bits"],
            "block_size_bits_per_parameter": mean["block_size_bits"],
            "update_round": float(self._first.carries_blocks),
        }
