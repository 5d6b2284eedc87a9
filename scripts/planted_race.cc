// A loop with a race, which `make tsan` must find before its other results count. See scripts/native.mk.

extern "C" __attribute__((visibility("default"))) long planted_race(int num_threads) {
  long sum = 0;
#pragma omp parallel for num_threads(num_threads)
  for (long i = 0; i < 100000; ++i) sum += i;  // A reduction is missing.
  return sum;
}
