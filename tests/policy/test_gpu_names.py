"""The GPU that a name means, in whoever's spelling."""

import pytest

from adaptft.errors import RequestError
from adaptft.policy.gpus import GPU_MODELS, gpu_named, known_gpu


@pytest.mark.parametrize("key", GPU_MODELS)
def test_every_key_names_its_own_row(key):
    gpu, row = gpu_named(key), GPU_MODELS[key]
    assert (gpu.name, gpu.sm_count) == (row.names[0], row.sm_count)
    assert gpu.memory_total_bytes == int(row.memory_gib * 2**30)
    assert known_gpu(gpu).fp16_tflops == row.fp16_tflops


@pytest.mark.parametrize(
    ("name", "key"),
    [
        ("A100-80GB", "a100-80g"),
        ("a100 80 GB", "a100-80g"),
        ("A100-SXM4-80GB", "a100-80g"),
        ("NVIDIA A100-SXM4-40GB", "a100-40g"),
        ("NVIDIA A100 80GB PCIe", "a100-pcie-80g"),
        ("A100-PCIE-80GB", "a100-pcie-80g"),
        ("h100-80g", "h100"),
        ("H100 SXM", "h100"),
        ("H100-PCIe", "h100-pcie"),
        ("RTX 4090", "4090"),
        ("rtx4090", "4090"),
        ("GeForce RTX 4090 24GB", "4090"),
        ("RTX 4090 D", "4090d"),
        ("RTX_3090", "3090"),
        ("NVIDIA A10", "a10"),
        ("A10G", "a10g"),
        ("RTX A6000", "a6000"),
        ("RTX 6000 Ada", "6000ada"),
        ("Tesla T4", "t4"),
        ("RTX 3060 12GB", "3060"),
        ("RTX 3080 10 GB", "3080"),
        ("RTX 4060 Ti 16GB", "4060ti-16g"),
        ("RTX 4070 Ti SUPER", "4070ti-super"),
        ("RTX 5070 Ti", "5070ti"),
        ("2080 Ti", "2080ti"),
        ("2080 Ti 22GB", "2080ti-22g"),
    ],
)
def test_a_name_as_people_write_it_means_one_row(name, key):
    row, gpu = GPU_MODELS[key], gpu_named(name)
    assert (gpu.name, gpu.memory_total_bytes) == (row.names[0], int(row.memory_gib * 2**30))


@pytest.mark.parametrize(
    ("name", "keys"),
    [
        ("A100", ["a100-40g", "a100-80g", "a100-pcie-40g", "a100-pcie-80g"]),
        ("V100", ["v100-16g", "v100-32g", "v100-pcie-16g", "v100-pcie-32g"]),
        ("NVIDIA A800", ["a800-80g", "a800-pcie-80g"]),
        ("4070 Ti", ["4070ti-super"]),
    ],
)
def test_a_name_that_leaves_something_open_lists_what_it_could_mean(name, keys):
    with pytest.raises(RequestError, match=r"is one of several|is not the whole name") as caught:
        gpu_named(name)
    assert all(f"{key} (" in caught.value.fix for key in keys)
    assert caught.value.fix.count("GiB") == len(keys)


def test_an_unknown_name_gets_the_nearest():
    with pytest.raises(RequestError, match="There is no GPU 'a1000'") as caught:
        gpu_named("a1000")
    assert caught.value.fix.startswith("Did you mean a")
