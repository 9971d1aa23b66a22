# Compiles Python with numba and cython, and computes on a local cluster of dask.
# pip: numba dask[distributed] cython setuptools
# has: gcc
# apt: gcc libc6-dev python3-dev
# options: --memory 2g

echo 'def add(int a, int b): return a + b' > fast.pyx; cythonize -q -i fast.pyx > log 2>&1; echo "status $?"; python -c 'import fast; print(fast.add(40, 2))'
cat > t.py <<'END'
import numba, numpy as np
@numba.njit(parallel=True)
def total(a):
    s = 0.0
    for i in numba.prange(len(a)): s += a[i]
    return s
if __name__ == "__main__":
    print(total(np.arange(1000.0)))
    from dask.distributed import Client
    with Client(n_workers=2, threads_per_worker=1, dashboard_address=None) as client: print(sum(client.gather(client.map(lambda x: x * x, range(10)))))
END
python t.py 2> err; echo "status $?"; grep -c Error err; rm -rf build log err fast.c *.so __pycache__
