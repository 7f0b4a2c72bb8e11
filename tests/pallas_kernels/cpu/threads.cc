// Prints the bits of matmuls that run on pools of several sizes; see test_threads.py.
#include <cstdio>
#include <vector>

#include "matmul.h"
#include "queue_pool.h"

using namespace jengine;

// A digest of norm(x) @ weight on so many threads.
uint64_t digest(int64_t threads, int64_t rows, int64_t inputs, int64_t outputs, int repeats) {
  QueuePool pool(threads);
  const Weight weight{nullptr, Number::FLOAT32, Storage::INPUTS_FIRST, inputs, outputs, Gate::NONE};
  std::vector<float> x(rows * inputs), plain(inputs * outputs), norm(inputs, 1.0f);
  std::vector<float> out(rows * outputs), packed(weight.packed_bytes() / 4);
  for (size_t i = 0; i < x.size(); i++) x[i] = (float)(i * 7919 % 1013) / 1013 - 0.5f;
  for (size_t i = 0; i < plain.size(); i++) plain[i] = (float)(i * 104729 % 997) / 997 - 0.5f;
  Weight given = weight, ready = weight;
  given.data = (const char*)plain.data();
  pack(pool, given, (char*)packed.data());
  ready.storage = Storage::PACKED;
  std::vector<int32_t> numbers(rows);
  for (int64_t i = 0; i < rows; i++) numbers[i] = (int32_t)i;
  const RowGroup group{0, rows, (const char*)packed.data(), nullptr};
  uint64_t hash = 1469598103934665603u;
  for (int i = 0; i < repeats; i++) {
    matmul(pool, {{(const char*)x.data(), false, inputs, {NormKind::RMS, norm.data(), nullptr, 1e-5f}},
                  ready,
                  {(char*)out.data(), false, Activation::SILU, nullptr},
                  numbers.data(), &group, 1});
    for (float value : out) {
      uint32_t bits;
      std::memcpy(&bits, &value, sizeof bits);
      hash = (hash ^ bits) * 1099511628211u;
    }
  }
  return hash;
}

int main() {
  for (int64_t threads : {1, 2, 7, 32})
    std::printf("%d %llx %llx %llx\n", (int)threads,
                (unsigned long long)digest(threads, 3, 96, 200, 200),
                (unsigned long long)digest(threads, 130, 64, 70, 40),
                (unsigned long long)digest(threads, 257, 900, 33, 4));
}
