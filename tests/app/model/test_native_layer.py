"""The dense layer's functions as C calls them, without MindSpore: what AddressSanitizer can run, too.

Each array ends where a page begins that nobody may touch, so that a kernel, oneDNN's code included, which reads or
writes beyond an end crashes.
"""

import ctypes
import itertools
import mmap
import os
from pathlib import Path

import numpy as np
import pytest

from app.config.device import cpu_flags
from app.model.dense_state import DropoutNoise, keep_mask
from app.model.native_tower import distinct_rows
from tests.app.model.tensors import SHAPES, draw, to_bfloat16

LIBC = ctypes.CDLL(None, use_errno=True)
NO_ACCESS = 0


@pytest.fixture(scope="module")
def library(project):
    built = project / "app" / "model" / "csrc" / "build" / "libdense_layer.so"
    path = Path(os.environ.get("DENSE_LAYER_LIBRARY", built))
    if not path.exists() and not os.environ.get("CI"):
        pytest.skip(f"{path} is missing; run `make native`")
    return ctypes.CDLL(str(path))


def guarded(values):
    """A copy of an array that ends at a page without access."""
    pages = -(-values.nbytes // mmap.PAGESIZE) or 1
    memory = mmap.mmap(-1, (pages + 1) * mmap.PAGESIZE)
    start = ctypes.addressof(ctypes.c_char.from_buffer(memory))
    assert LIBC.mprotect(ctypes.c_void_p(start + pages * mmap.PAGESIZE), mmap.PAGESIZE, NO_ACCESS) == 0
    copy = np.frombuffer(memory, values.dtype, values.size, pages * mmap.PAGESIZE - values.nbytes).reshape(values.shape)
    copy[...] = values
    return copy


def call(library, name, inputs, output_shapes):
    """The outputs of one of the layer's functions, as MindSpore would call it."""
    outputs = [np.full(shape, np.nan, np.float32) for shape in output_shapes]
    arrays = invoke(library, name, (*inputs, *outputs))
    for array, given in zip(arrays, inputs, strict=False):
        np.testing.assert_array_equal(array, given)
    return arrays[len(inputs) :]


def invoke(library, name, arrays):
    """The arrays after a call of one of the functions, which may write to any."""
    arrays = [guarded(array) for array in arrays]
    count = len(arrays)
    params = (ctypes.c_void_p * count)(*(array.ctypes.data for array in arrays))
    num_dims = (ctypes.c_int * count)(*(array.ndim for array in arrays))
    rows = [(ctypes.c_int64 * array.ndim)(*array.shape) for array in arrays]
    shapes = (ctypes.POINTER(ctypes.c_int64) * count)(*rows)
    dtypes = (ctypes.c_char_p * count)(*(array.dtype.name.encode() for array in arrays))
    assert getattr(library, name)(count, params, num_dims, shapes, dtypes, None, None) == 0
    return arrays


@pytest.mark.parametrize("shape", SHAPES, ids=str)
@pytest.mark.parametrize("rate", [0, 0.25], ids=["dense", "dropout"])
@pytest.mark.parametrize("precision", ["float32", "bfloat16"])
def test_forward_and_backward_are_the_layer_s(library, shape, rate, precision):
    """In float64, but for what is rounded to bfloat16; sums of up to 1,300 float32 products, 2e-6 of the largest.

    The bits are those of any number of threads.
    """
    x, w, n, f, dy = draw(shape)
    rounded = to_bfloat16 if precision == "bfloat16" else np.asarray
    noise = DropoutNoise(3, rate, 1).of_step(5, first_row=7)[0]
    factors = np.where(keep_mask(noise, shape[0], shape[2]), 1 / (1 - rate), 0)

    def kernels(threads):
        library.dense_set_threads(threads)
        (y,) = call(library, f"dense_forward_{precision}", [x, w, n, f, noise], [dy.shape])
        shapes = [x.shape, w.shape, f.shape]
        return [y, *call(library, f"dense_backward_{precision}", [dy, y, x, w, n, noise], shapes)]

    found = kernels(1)
    exact = rounded(x).astype(np.float64) @ rounded(w).astype(np.float64) + n.astype(np.float64) @ f
    dz = np.where(found[0] > 0, dy * np.float32(1 / (1 - rate)), np.float32(0)).astype(np.float32)
    dz = rounded(dz).astype(np.float64)
    expected = np.maximum(exact, 0) * factors, dz @ rounded(w).T, rounded(x).T @ dz, rounded(n).T @ dz
    for got, again, want in zip(found, kernels(3), expected, strict=True):
        assert_close(got, want)
        np.testing.assert_array_equal(got, again)


# Batch, fields, D, H, ids a field: one of each; sizes that no block divides; several tasks and blocks of columns.
DISTINCT_SHAPES = [(1, 1, 1, 1, 1), (70, 3, 5, 37, 9), (1300, 4, 7, 530, 900)]


@pytest.mark.parametrize("ways", ["distinct", "direct", "mixed"])
@pytest.mark.parametrize("shape", DISTINCT_SHAPES, ids=str)
@pytest.mark.parametrize(("precision", "rate"), [("float32", 0), ("float32", 0.25), ("bfloat16", 0)])
def test_distinct_rows_give_the_layer_s_values(library, shape, precision, rate, ways):
    """In float64, but for what is rounded: of bfloat16 also the products and summed gradients, 2^-8 of each.

    The bits are those of any number of threads.
    """
    (batch, num_fields, width, width_out, num_ids), generator = shape, np.random.default_rng(0)
    ids = generator.integers(0, num_ids, (batch, num_fields))
    row_ids, index, starts = distinct_rows(ids)
    np.testing.assert_array_equal(row_ids[index], ids)
    for field, column in enumerate(index.T):
        assert sorted(set(column)) == list(range(starts[field], starts[field + 1]))
    is_distinct = {"distinct": 1, "direct": 0, "mixed": np.arange(num_fields) % 2}[ways]
    fields = np.concatenate([starts, np.full(num_fields, is_distinct)]).astype(np.int32)
    noise = DropoutNoise(3, rate, 1).of_step(5, first_row=7)[0]
    factors = np.where(keep_mask(noise, batch, width_out), 1 / (1 - rate), 0)
    sizes = (starts[-1] + 3, width), (num_fields * width, width_out), (batch, 2), (2, width_out), (batch, width_out)
    rows, w, n, f, dy = (generator.standard_normal(size).astype(np.float32) for size in sizes)
    rounded, tolerance = (np.asarray, 2e-6) if precision == "float32" else (to_bfloat16, 6e-3)
    x = rounded(rows)[index].reshape(batch, -1).astype(np.float64)
    y = np.maximum(x @ rounded(w).astype(np.float64) + n.astype(np.float64) @ f, 0) * factors
    dz = np.where(y > 0, dy * np.float32(1 / (1 - rate)), np.float32(0)).astype(np.float64)
    dx, drows = (dz @ rounded(w).T).reshape(batch, num_fields, width), np.zeros(rows.shape)
    np.add.at(drows, index, dx)

    def kernels(threads):
        library.dense_set_threads(threads)
        (forward,) = call(library, f"distinct_forward_{precision}", [rows, w, n, f, index, fields, noise], [dy.shape])
        inputs, outputs = [dy, y.astype(np.float32), rows, w, n, index, fields, noise], [rows.shape, w.shape, f.shape]
        return [forward, *call(library, f"distinct_backward_{precision}", inputs, outputs)]

    found = kernels(1)
    for got, again, want in zip(found, kernels(3), (y, drows, x.T @ dz, n.T @ dz), strict=True):
        assert np.abs(got - want).max() <= tolerance * (np.abs(want).max() or 1)
        np.testing.assert_array_equal(got, again)
    assert not found[1][starts[-1] :].any()


@pytest.mark.parametrize("limit", [np.inf, 8.0])
@pytest.mark.parametrize("threads", [1, 3])
def test_all_finite_finds_one_value_anywhere(library, limit, threads):
    """Also where arrays are empty, begin anywhere or are cut for several tasks."""
    library.dense_set_threads(threads)
    largest = np.float32(min(limit, np.finfo(np.float32).max))
    fine = np.nextafter(largest, np.float32(0)) if limit < np.inf else largest
    arrays = [np.full(size, fine, np.float32) for size in ((), (0, 3), (65536,), (7, 9363), (1, 1))]
    arrays[2][::2] *= -1

    def flag(found):
        (result,) = call(library, "all_finite", [np.full(1, limit, np.float32), *found], [(1,)])
        return result[0]

    assert flag(arrays) == 1
    for array, place in ((0, 0), (2, 0), (2, 65535), (3, 65536 - 1), (3, 65536 - 3), (3, 65540), (4, 0)):
        for bad in (np.nan, -np.nan, np.inf, -np.inf, *((limit, -limit) if limit < np.inf else ())):
            changed = [values.copy() for values in arrays]
            changed[array].reshape(-1)[place % changed[array].size] = bad
            assert flag(changed) == 0, (array, place, bad)


@pytest.mark.parametrize("weight_decay", [0, 0.3])
@pytest.mark.parametrize("threads", [1, 3])
def test_adam_is_the_formula_bit_by_bit(library, threads, weight_decay):
    """In three steps, on empty arrays, odd sizes and values that are not finite; the factor is no power of 2.

    A fused sum of a product has no rounding between: float64 holds the product exactly. The last values, which fill no
    vector of 8, are moved in float64.
    """
    if "fma" not in cpu_flags():
        pytest.skip("MindSpore's Adam is taken without FMA")
    library.dense_set_threads(threads)
    generator, sizes = np.random.default_rng(0), [(), (0,), (3, 5), (65536 + 22,)]
    beta1, beta2, epsilon, factor, decay = constants = np.float32([0.9, 0.999, 1e-8, 1 / 1000, weight_decay])
    rate, one = np.float32(0.01), np.float32(1)
    weights = [np.float32(generator.standard_normal(size)) for size in sizes]
    state = [*weights, *(np.zeros_like(values) for values in weights * 2)]
    powers = np.float32([1, 1])

    def fused(left, right, added):
        return np.float32(left.astype(np.float64) * np.float64(right) + added.astype(np.float64))

    for _ in range(3):
        gradients = [np.float32(generator.standard_normal(size) * 10.0 ** generator.integers(-9, 9)) for size in sizes]
        gradients[-1][[0, 1, -1]] = np.nan, np.inf, 1e-42
        before = [np.array(power) for power in powers]
        arrays = invoke(library, "dense_adam", [constants, rate, *before, *state, *gradients, np.zeros(1, np.float32)])
        powers = powers * constants[:2]
        np.testing.assert_array_equal(arrays[2:4], powers)
        corrected = rate * np.sqrt(one - powers[1]) / (one - powers[0])
        expected = [[], [], []]
        with np.errstate(invalid="ignore"):
            for w, m, v, gradient in zip(state[:4], state[4:8], state[8:], gradients, strict=True):
                g = gradient * factor
                m = fused(g - m, one - beta1, m)
                v = fused(fused(g, g, -v), one - beta2, v)
                kept, move = w * (one - rate * decay), corrected * m
                w = np.atleast_1d(kept - move / (np.sqrt(v) + epsilon))
                last = slice(w.size - w.size % 8, None)
                root = np.sqrt(v.reshape(-1)[last].astype(np.float64)) + np.float64(epsilon)
                w.reshape(-1)[last] = kept.reshape(-1)[last] - move.reshape(-1)[last] / root
                w = w.reshape(v.shape)
                for values, of in zip((w, m, v), expected, strict=True):
                    of.append(values)
        for got, want in zip(arrays[4:16], itertools.chain(*expected), strict=True):
            np.testing.assert_array_equal(got, want)
        state = [values.copy() for values in arrays[4:16]]


def assert_close(found, expected):
    assert np.abs(found - expected).max() <= 2e-6 * (np.abs(expected).max() or 1)
