"""How large an exported file may be."""

# Protobuf (ONNX) and flatbuffers (StableHLO) hold less than 2**31 bytes. Some are left
# for what is not weights.
LARGEST = 2**31 - 2**24


def check_size(where: str, size: int) -> None:
    """Raise ValueError if a file would be too large for its format.

    Args:
        where: the name of the function, for the message.
        size: bytes of the weights.
    """
    if size > LARGEST:
        raise ValueError(
            f"{where}: the weights have {size / 1e9:.3g} GB, and a file of this format "
            f"has room for {LARGEST / 1e9:.3g} GB; export the model in parts, such as "
            "its layers, or as a function whose inputs are the weights"
        )
