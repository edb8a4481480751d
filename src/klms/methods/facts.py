"""What a round's messages say of themselves, for the ledger."""

from collections.abc import Sequence

from klms.codec import inspect


def message_facts(messages: Sequence[bytes], d: int) -> dict[str, float]:
    """Means over the clients; KL, blocks and their bytes for messages of the codec."""
    facts = {"bits_per_parameter": sum(8 * len(message) / d for message in messages) / len(messages)}
    infos = [inspect(message) for message in messages if message[:2] == b"KL"]
    if any(info.mean_kl for info in infos):  # DP-REC's messages do not say
        facts |= {
            "kl_bits_per_parameter": sum(info.mean_kl * info.blocks / d for info in infos) / len(infos),
            "block_kl_bits": sum(info.mean_kl for info in infos) / len(infos),
        }
    if infos:
        facts |= {
            "blocks": sum(info.blocks for info in infos) / len(infos),
            "index_bits_per_parameter": sum(8 * info.index_bytes / d for info in infos) / len(infos),
            "block_size_bits_per_parameter": sum(8 * info.block_size_bytes / d for info in infos) / len(infos),
            "update_round": float(infos[0].carries_blocks),
        }
    return facts
