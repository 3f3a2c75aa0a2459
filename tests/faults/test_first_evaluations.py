"""The first evaluation of a process has the bits of any other: MKL chooses its code at the first call of a function,
and of threads that make that call together one may get a version of fewer digits (pytorch/pytorch#188792)."""

from __future__ import annotations

import multiprocessing

import pytest
import torch

from kfx.numerics import threads


def _first_evaluation(results):
    import hashlib

    from kfx.data import preprocess
    from kfx.experiment.compose import load
    from kfx.numerics.streams import Streams

    threads.use(2)
    settings = load(["dataset=digits", "sampler.batch_size=300"])
    data = preprocess(settings.dataset.build(Streams(0)["data"]), settings.dataset.preprocess)
    kernel = settings.kernel.build((8, 8))
    x, y = torch.as_tensor(data.x_train), torch.as_tensor(data.y_train)
    loss = settings.optimizer.make_loss(settings)(kernel, x, y)
    batch = settings.sampler.build(1).start(x, y).draw(Streams(0)["batches"])
    found = loss(kernel.flat, batch)
    content = repr((found.rho, found.regularization, found.gradient.tolist())).encode()
    results.put(hashlib.sha256(content).hexdigest())


@pytest.mark.slow
@pytest.mark.timeout(1200)
def test_first_evaluations_in_fresh_processes_have_the_same_bits(full, counts):
    """500 with `make faults`, four at a time, so that threads start while others compute."""
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["kfx.experiment.compose", "kfx.experiment.preflight", "kfx.data.embedded"])
    count, found = 500 if full else 6, []
    results = context.Queue()
    for start in range(0, count, 4):
        processes = [context.Process(target=_first_evaluation, args=(results,)) for _ in range(min(4, count - start))]
        for process in processes:
            process.start()
        found += [results.get(timeout=120) for _ in processes]
        for process in processes:
            process.join()
    counts["first evaluations"] += len(found)
    assert len(found) == count
    assert len(set(found)) == 1
