"""Work side by side: shares of the cores, order, failures."""

import ctypes
import shutil
import subprocess
import threading
import time

import pytest
import torch

from sojourn.backends.torch.kernels.compiler import loaded_library, openmp
from sojourn.backends.torch.trainer.worker_pool import WorkerPool

CPU = torch.device("cpu")


@pytest.fixture
def pool(request):
    before = torch.get_num_threads()
    torch.set_num_threads(request.param)
    made = WorkerPool(CPU)
    yield made
    made.close()
    torch.set_num_threads(before)


@pytest.mark.parametrize(
    ("pool", "count"), [(1, 1), (2, 2), (3, 3), (5, 1), (6, 3), (8, 4), (64, 4)], indirect=["pool"]
)
def test_the_cores_are_shared_out(pool, count):
    assert pool.count == count
    cores = torch.get_num_threads()
    meet = threading.Barrier(count)

    def threads() -> int:
        meet.wait(100)  # each on a thread of its own
        return openmp().omp_get_max_threads()

    assert list(pool.run([threads] * count)) == [cores // count] * count
    assert torch.get_num_threads() == cores


@pytest.mark.skipif(shutil.which("cc") is None, reason="needs a C compiler")
def test_the_cores_of_another_runtime_are_left_alone(tmp_path):
    """scikit-learn and others come with an OpenMP runtime of their own, whose settings torch does not read."""
    large = "char large[1 << 28];"  # fits in no gap, and so comes first among the libraries of the process
    (tmp_path / "other.c").write_text(f"{large} int omp_get_max_threads(void) {{ return 99; }}")
    library = tmp_path / "libgomp-other.so"
    subprocess.run(["cc", "-shared", "-fPIC", "-o", library, tmp_path / "other.c"], check=True)
    assert ctypes.CDLL(str(library)).omp_get_max_threads() == 99
    assert openmp.__wrapped__().omp_get_max_threads() == torch.get_num_threads()


@pytest.mark.skipif(not torch.backends.mkl.is_available(), reason="torch multiplies without MKL")
@pytest.mark.parametrize("pool", [2, 6], indirect=True)
def test_products_keep_to_their_share(pool):
    asked = loaded_library("libtorch_cpu").MKL_Get_Max_Threads
    cores = torch.get_num_threads()  # 2 or 6, and MKL was told so

    def product() -> int:
        torch.ones(64, 64) @ torch.ones(64, 64)
        return asked()

    before = asked()
    assert list(pool.run([product] * pool.count)) == [cores // pool.count] * pool.count
    assert asked() == before


@pytest.mark.parametrize("pool", [2], indirect=True)
def test_what_each_gives_comes_in_order(pool):
    def late(n: int) -> int:
        time.sleep(0.02 * (3 - n))
        return n

    assert list(pool.run([lambda n=n: late(n) for n in range(4)])) == [0, 1, 2, 3]


@pytest.mark.parametrize("pool", [2], indirect=True)
def test_a_failure_is_raised_and_the_pool_goes_on(pool):
    def fails() -> int:
        raise ValueError("no")

    with pytest.raises(ValueError, match="no"):
        list(pool.run([lambda: 1, fails]))
    assert list(pool.run([lambda: 1, lambda: 2])) == [1, 2]


@pytest.mark.parametrize("pool", [2], indirect=True)
def test_what_is_not_taken_holds_up_what_comes_next(pool):
    begun: list[int] = []
    given = pool.run([lambda n=n: begun.append(n) for n in range(9)])
    next(given)
    give_up = time.monotonic() + 100
    while len(begun) < 3 and time.monotonic() < give_up:
        time.sleep(0.001)
    time.sleep(0.1)  # in which no further one begins
    assert sorted(begun) == [0, 1, 2]
    given.close()
    assert sorted(begun) == [0, 1, 2]


def test_an_accelerator_is_not_shared_out():
    assert WorkerPool(torch.device("cuda")).count == 1


def test_without_openmp_there_is_one(monkeypatch):
    monkeypatch.setattr("sojourn.backends.torch.trainer.worker_pool.openmp", lambda: None)
    assert WorkerPool(CPU).count == 1
