"""The real memory of a process whose cache gets more distinct answers than it has room for."""

from __future__ import annotations

import platform
import subprocess
import sys

import pytest

from tests.project import ROOT

SIZE = 40_000_000
# Two threads keep answers of all sizes; the memory of the process is noted whenever the cache was filled once more.
PROGRAM = f"""
import os, random, threading
import numpy as np
from trident.app.process.heap import keep_freed_memory, use_one_heap
from trident.core.inference.response import InferenceResponse, OutputTensor
from trident.core.response_cache.response_cache import CachedResponse
from trident.core.response_cache.local_cache import LocalCache

ROUNDS, SIZES = 6, (16, 100, 700, 3000, 20000)

def resident():
    with open("/proc/self/statm") as statm:
        return int(statm.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")

def answers(thread):
    chance = random.Random(thread)
    for round in range(ROUNDS):
        for number in range(6000):
            array = np.zeros((1, chance.choice(SIZES)), np.uint8)
            response = InferenceResponse("m", 1, [OutputTensor("OUT", "UINT8", array.shape, array)])
            cache.put(b"scope000=%d-%d-%d" % (thread, round, number), CachedResponse.of(response))
        for _ in range(2):
            barrier.wait()

keep_freed_memory(), use_one_heap()
cache, barrier = LocalCache({SIZE}), threading.Barrier(3)
before = resident()
threads = [threading.Thread(target=answers, args=(number,)) for number in range(2)]
for thread in threads:
    thread.start()
for _ in range(ROUNDS):
    barrier.wait()
    print(resident() - before, cache.metrics().used, cache.metrics().evictions)
    barrier.wait()
for thread in threads:
    thread.join()
"""


@pytest.mark.slow
@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="another heap")
def test_the_memory_of_the_process_stays_where_it_was_when_the_cache_became_full() -> None:
    done = subprocess.run([sys.executable, "-c", PROGRAM], cwd=ROOT, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    resident, used, evictions = zip(*(map(int, line.split()) for line in done.stdout.splitlines()), strict=True)
    assert min(used) > 0.99 * SIZE
    assert max(used) <= SIZE
    assert evictions[0] > 0
    assert evictions[-1] > 5 * evictions[0]
    assert max(resident) - resident[0] <= 0.02 * SIZE, resident
    assert max(resident) <= 1.05 * SIZE, resident
