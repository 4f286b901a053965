"""How near a training step of residual_pe comes to what the machine can do, and where the rest of its time goes.

    python -m benchmarks.roofline

Counts the floating-point operations and the bytes that the operators of a step read and write, measures the machine's
rate of matrix products and of copying, and takes a profile. The notes in benchmarks/roofline.md are made from it.
"""

import time
from collections import Counter
from itertools import islice

import torch
from torch.profiler import ProfilerActivity, profile
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves
from torch.utils.flop_counter import FlopCounterMode

from benchmarks.training import settings
from imdbattn.data.corpus import prepare
from imdbattn.runs.trainer import keep_memory, quiet, use_onednn
from imdbattn.tasks.build import build_data, make, new_module

STEPS = 60
KINDS = {  # words in the names of operators
    "products of matrices": ("aten::mm", "aten::bmm", "aten::addmm", "aten::baddbmm"),
    "softmax": ("aten::_softmax", "aten::_softmax_backward_data"),
    "layer norm": ("aten::native_layer_norm", "aten::native_layer_norm_backward"),
    "optimiser, clipping": ("aten::_fused_adamw_", "aten::linalg_vector_norm", "aten::_foreach_norm"),
}


class Bytes(TorchDispatchMode):
    """Bytes that operators read and write; views cost nothing."""

    def __init__(self) -> None:
        super().__init__()
        self.total = 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        found = func(*args, **(kwargs or {}))
        if not func.is_view:
            tensors = [t for t in tree_leaves((args, kwargs, found)) if isinstance(t, torch.Tensor)]
            if func is torch.ops.aten.embedding.default:  # only the rows that are looked up are read
                tensors = [args[1], found, found]
            self.total += sum(t.nbytes for t in {id(t): t for t in tensors}.values())
        return found


def rate(work, amount: float, repeats: int = 8) -> float:
    """Amount a second, the best of some repeats."""
    work()
    best = float("inf")
    for _ in range(repeats):
        start = time.perf_counter()
        work()
        best = min(best, time.perf_counter() - start)
    return amount / best


def machine() -> dict[str, float]:
    """1e9 operations a second of a large float32 product, torch's own and oneDNN's, and GB/s of a copy."""
    a, large = torch.randn(2048, 2048), torch.randn(50_000_000)
    copy = torch.empty_like(large)
    found = {"default": rate(lambda: a @ a, 2 * 2048**3) / 1e9}
    found["oneDNN"] = rate(lambda: a @ a, 2 * 2048**3) / 1e9 if use_onednn() else found["default"]
    found["copy"] = rate(lambda: copy.copy_(large), 2 * large.nbytes) / 1e9
    return found


def main() -> None:
    quiet()
    keep_memory()
    speed = machine()
    cfg = settings("data.word_dropout=0")
    corpus = prepare(cfg["data"])
    module, loader = new_module(cfg, corpus), build_data(cfg, corpus).train_dataloader()
    module._trainer = type("Alone", (), {"world_size": 1})()
    optimizer = make(cfg["optim"], "optim", torch.optim.Optimizer)(module.parameters())
    batches = list(islice(loader, STEPS))

    def step(batch) -> None:
        optimizer.zero_grad()
        module.training_step(batch, 0).backward()
        torch.nn.utils.clip_grad_norm_(module.parameters(), 1.0)
        optimizer.step()

    def run() -> float:
        start = time.perf_counter()
        for batch in batches:
            step(batch)
        return (time.perf_counter() - start) / STEPS

    first, took = run(), min(run() for _ in range(3))
    flops, moved = FlopCounterMode(display=False), Bytes()
    with flops:
        run()
    with moved:
        run()
    with profile(activities=[ProfilerActivity.CPU]) as profiled:
        run()
    shares: Counter[str] = Counter()
    for event in profiled.key_averages():
        kind = next((kind for kind, names in KINDS.items() if event.key in names), "")
        kind = kind or ("other operators" if event.key.startswith("aten::") else "Python, autograd, Lightning's hooks")
        shares[kind] += event.self_cpu_time_total
    operations, size = flops.get_total_flops() / STEPS, moved.total / STEPS
    reviews = sum(len(batch.labels_B) for batch in batches) / STEPS
    print(f"{torch.get_num_threads()} threads, torch {torch.__version__}, {reviews:.1f} reviews a step\n")
    print("| what | value |\n|---|---|")
    for name, value in {
        "matrix products of the machine, torch's own (MKL)": f"{speed['default']:.0f} GFLOP/s",
        "matrix products of the machine, oneDNN": f"{speed['oneDNN']:.0f} GFLOP/s",
        "copying": f"{speed['copy']:.1f} GB/s",
        "floating-point operations of a step": f"{operations / 1e9:.2f} G",
        "bytes read and written by its operators": f"{size / 1e9:.2f} GB",
        "floor by operations, torch's own products": f"{operations / speed['default'] / 1e6:.1f} ms",
        "floor by operations, oneDNN": f"{operations / speed['oneDNN'] / 1e6:.1f} ms",
        "these bytes, if all came from memory": f"{1e3 * size / speed['copy'] / 1e9:.1f} ms",
        "a step, shapes seen before": f"{1e3 * took:.1f} ms, {reviews / took:.0f} reviews/s",
        "a step, shapes seen for the first time": f"{1e3 * first:.1f} ms",
        "share of the step: operations at MKL's rate": f"{100 * operations / speed['default'] / 1e9 / took:.0f} %",
    }.items():
        print(f"| {name} | {value} |")
    print("\n| profile of a step | share |\n|---|---|")
    for kind, spent in shares.most_common():
        print(f"| {kind} | {100 * spent / shares.total():.0f} % |")


if __name__ == "__main__":
    main()
