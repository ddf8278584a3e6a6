"""Python runs this at its start: the rank that the environment names runs out of memory in a backward pass."""

import os
import sys

if (
    os.environ.get("ADAPTFT_TEST_FAULT") == os.environ.get("RANK", "none")
    and "adaptft.training.worker" in sys.orig_argv
):
    from faults import small_device

    fault = small_device(1, where="backward", after=30)
    fault.__enter__()  # for as long as the process lives
