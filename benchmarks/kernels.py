"""Every kernel of ours at the sizes of a model, beside what the machine can do at all: bytes copied, FLOP of a matmul.

python benchmarks/kernels.py [--tokens 8192] [--hidden 3584] [--width 18944] [--only WORDS] [--out FILE.json]

A kernel that moves memory stands beside a copy of as many bytes, a matmul in FP8 beside the same one in bf16. Needs an
NVIDIA GPU; the sizes are Qwen2.5-7B's.
"""

from __future__ import annotations

import argparse
import datetime
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import median

import torch
from product import Record, table
from torch import Tensor

from adaptft.kernels import adamw, fp8_matmul, gated, quantize
from adaptft.kernels.trained_linear import trained_linear
from adaptft.kernels.trained_mlp import trained_mlp

WARM, TIMED = 3, 15
RATE = adamw.Settings(rate=1e-5, beta1=0.9, beta2=0.95, epsilon=1e-8, decay=0.1, seed=0)


@dataclass(frozen=True, slots=True)
class Case:
    """Something to run; ``moved`` bytes are what it has to read and write, ``flop`` what it has to compute."""

    name: str
    run: Callable[[], object]
    moved: int = 0
    flop: float = 0.0


@dataclass(frozen=True, slots=True)
class Sizes:
    """Of one layer's MLP and the tokens that pass it."""

    tokens: int
    hidden: int
    width: int


def main() -> None:
    options = read_options()
    sizes = Sizes(options.tokens, options.hidden, options.width)
    torch.manual_seed(0)
    copied = bytes_a_second()
    flops = flop_a_second(sizes)
    record = Record.open(options.out, options.date)
    record.content |= {"sizes": asdict(sizes), "copy_bytes_per_second": copied, "bf16_flop_per_second": flops}
    found = record.part("kernels", [])
    for case in cases(sizes):
        if options.only and not any(word in case.name for word in options.only):
            continue
        seconds = measure(case.run)
        ideal = max(case.moved / copied, case.flop / (2 * flops))
        found.append({"kernel": case.name, "seconds": seconds, "ideal_seconds": ideal, "ratio": ideal / seconds})
        record.save()
    print(as_table(found))


def read_options() -> argparse.Namespace:
    today = datetime.date.today().isoformat()
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tokens", type=int, default=8192)
    parser.add_argument("--hidden", type=int, default=3584)
    parser.add_argument("--width", type=int, default=18944)
    parser.add_argument("--only", nargs="+", help="kernels whose name holds one of these words")
    parser.add_argument("--out", type=Path, default=Path(f"benchmarks/results/kernels-{today}.json"))
    parser.set_defaults(date=today)
    return parser.parse_args()


def measure(run: Callable[[], object]) -> float:
    """Seconds on the GPU, the median of some runs; the cache is cold where operands are larger than it."""
    for _ in range(WARM):
        run()
    times = []
    for _ in range(TIMED):
        begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        begin.record()
        run()
        end.record()
        end.synchronize()
        times.append(begin.elapsed_time(end) / 1e3)
    return median(times)


def bytes_a_second() -> float:
    """Read and written by a copy of 1 GiB."""
    source = torch.empty(2**30, dtype=torch.uint8, device="cuda")
    target = torch.empty_like(source)
    return 2 * source.numel() / measure(lambda: target.copy_(source))


def flop_a_second(sizes: Sizes) -> float:
    """Of the up projection in bf16."""
    x, weight = _normal(sizes.tokens, sizes.hidden), _normal(sizes.width, sizes.hidden)
    return 2 * sizes.tokens * sizes.hidden * sizes.width / measure(lambda: x @ weight.t())


def cases(sizes: Sizes) -> Iterator[Case]:
    """All of them, made when they are asked for, since memory is not unlimited."""
    yield from _quantising(sizes)
    yield from _matmuls(sizes)
    yield from _layers(sizes)
    yield from _optimizers()


def _quantising(sizes: Sizes) -> Iterator[Case]:
    tokens, hidden, width = sizes.tokens, sizes.hidden, sizes.width
    x, wide, products = _normal(tokens, hidden), _normal(tokens, width), _normal(tokens, 2 * width)
    yield Case("quantize rows, hidden", lambda: quantize.quantize_rows(x), 3 * x.numel())
    yield Case("quantize rows, powers", lambda: quantize.quantize_rows(wide, whole_powers=True), 3 * wide.numel())
    values, scale = quantize.quantize_rows(wide, whole_powers=True)
    yield Case("transpose fp8", lambda: quantize.transpose_fp8(values), 2 * values.numel())
    yield Case("rescale transposed", lambda: quantize.rescale_transposed(values, scale), 2 * values.numel())
    hidden_of, steepest = gated.gated_forward(products, "silu", fp8=True, whole_powers=True)
    yield Case("gate forward", lambda: gated.gated_forward(products, "silu", fp8=True), 5 * wide.numel())
    ranges = gated.Ranges(torch.ones(1, 2 * width, device="cuda"), scale, steepest, hidden_of.fp8_scale)
    yield Case("gate backward", lambda: gated.gated_backward(wide, products, "silu", ranges), 9 * wide.numel())


def _matmuls(sizes: Sizes) -> Iterator[Case]:
    flop = 2.0 * sizes.tokens * sizes.hidden * 2 * sizes.width
    x = quantize.quantize_rows(_normal(sizes.tokens, sizes.hidden), whole_powers=True)
    weights = [_normal(sizes.width, sizes.hidden) for _ in range(2)]
    weight = fp8_matmul.quantize_weights(weights)
    gradient = fp8_matmul.quantize_gradient(_normal(sizes.tokens, 2 * sizes.width), weight)
    dtype = torch.bfloat16
    yield Case("quantize weights", lambda: fp8_matmul.quantize_weights(weights), 3 * weight.values.numel())
    yield Case("fp8 forward", lambda: fp8_matmul.forward(x, weight, dtype), flop=flop)
    yield Case("fp8 input gradient", lambda: fp8_matmul.input_gradient(gradient, weight, dtype), flop=flop)
    yield Case(
        "fp8 weight gradient", lambda: fp8_matmul.weight_gradient(gradient, x, weight.fp8_scale, dtype), flop=flop
    )


def _layers(sizes: Sizes) -> Iterator[Case]:
    """Both passes of what stands for a layer, with what they quantise."""
    tokens, hidden, width = sizes.tokens, sizes.hidden, sizes.width
    x, upstream = _normal(tokens, hidden).requires_grad_(), _normal(tokens, hidden)
    weights = [_normal(*shape).requires_grad_() for shape in ((width, hidden), (width, hidden), (hidden, width))]
    flop = 3 * 2.0 * tokens * hidden * width * 3

    def mlp() -> object:
        return torch.autograd.grad(trained_mlp(x, *weights, "silu")[0], (x, *weights), upstream)

    def linear() -> object:
        return torch.autograd.grad(trained_linear(x, weights[:2])[0].chunk(2, dim=1)[0], (x, *weights[:2]), wide)

    wide = _normal(tokens, width)
    yield Case("trained mlp, both passes", mlp, flop=flop)
    yield Case("trained linear, both passes", linear, flop=flop * 2 / 3)


def _optimizers() -> Iterator[Case]:
    count = 2**28
    weight, gradient, mean, square = (torch.rand(count, device="cuda").bfloat16() for _ in range(4))
    step = torch.ones((), device="cuda")
    guard = adamw.Guard(torch.ones((), device="cuda"), torch.zeros((), device="cuda"))
    yield Case(
        "AdamW, rounded at random", lambda: adamw.update(weight, gradient, mean, square, step, RATE, guard), 14 * count
    )
    parameter = torch.nn.Parameter(weight)
    parameter.grad = gradient
    theirs = torch.optim.AdamW([parameter], lr=1e-5, fused=True)
    yield Case("torch's fused AdamW", theirs.step, 14 * count)


def _normal(*shape: int) -> Tensor:
    return torch.randn(shape, device="cuda", dtype=torch.bfloat16)


def as_table(found: list[dict[str, float]]) -> str:
    return table(
        [
            {
                "kernel": str(row["kernel"]),
                "ms": f"{1e3 * row['seconds']:.3f}",
                "at best": f"{1e3 * row['ideal_seconds']:.3f}",
                "of it reached": f"{row['ratio']:.0%}",
            }
            for row in found
        ]
    )


if __name__ == "__main__":
    main()
