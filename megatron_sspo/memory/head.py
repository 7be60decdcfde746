"""The sizes of the blocks and tiles of logits in the fused head, and the memory that they take."""

# Logits that are kept for the backward pass, so that they are not recomputed.
MEMORY_BUDGET_BYTES = 256 * 1024**2

# Elements of a block of logits [R, B]. Large enough for the matrix product to run at full speed; the gradient of the
# hidden states is read and written once per block, so larger blocks pay off where memory is faster.
BLOCK = {"cpu": 1 << 22, "cuda": 1 << 25}
MIN_COLUMNS = 512

# Elements of a tile. On a CPU two float32 tiles stay in cache; on a GPU larger tiles mean fewer kernels.
TILE = {"cpu": 1 << 19, "cuda": 1 << 22}


def block_width(num_rows: int, block: int, min_columns: int) -> int:
    """Returns the number of columns of a block of `block` elements."""
    return max(min_columns, block // max(1, num_rows) // 256 * 256)


def head_bytes(num_rows: int, num_columns: int, width: int, itemsize: int, *, on_cuda: bool) -> int:
    """Returns the most memory that the head allocates.

    It is the sum of the logits kept, a block in work, two tiles, the hidden states with their gradient, and the product
    that is added to either gradient. On CUDA before torch 2.8 a product also converts its operands; that is not
    counted.

    Args:
        num_rows: R, the number of response tokens.
        num_columns: V/TP.
        width: H.
        itemsize: bytes per element of hidden states and weight. Logits are float32 on a GPU, and of the same dtype on
            a CPU.
    """
    device = "cuda" if on_cuda else "cpu"
    logit_size = 4 if on_cuda else itemsize
    block = num_rows * min(num_columns, block_width(num_rows, BLOCK[device], MIN_COLUMNS))
    all_logits = num_rows * num_columns * logit_size
    kept = min(all_logits, MEMORY_BUDGET_BYTES)
    working = block * logit_size if kept < all_logits else 0
    gradient = block * itemsize if logit_size != itemsize else 0
    tiles = 2 * 4 * min(block, TILE[device])
    product = max(num_rows, block // max(1, num_rows)) * width * logit_size if itemsize < 4 else 0
    return kept + working + gradient + tiles + product + num_rows * width * (itemsize + 4)
