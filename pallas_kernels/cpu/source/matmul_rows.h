// The rows of a matmul, ready for the micro kernel. Threads prepare them block by block, and wait for
// those of others.
#pragma once

#include <vector>

#include "matmul.h"

namespace jengine {

// A block of rows on its way through the micro kernel.
struct Block {
  const int32_t* rows;  // their numbers
  int count;
};

// The rows of all groups, ready for the micro kernel: those of a block as [step][rows], or, in tiles,
// as [step / 16][rows][16].
class Left {
 public:
  Left(const Matmul& call, char* memory) : call_(call) {
    Arena arena(memory);
    words_ = arena.array<uint32_t>(words_in(call));
    sums_ = arena.array<float>(sums_in(call));
    for (int64_t g = 0; g < call.num_groups; g++) {
      first_.push_back((int64_t)places_.size());
      for (int64_t b = 0; b < blocks_of(g).count; b++) places_.push_back({g, b});
    }
    ready_ = std::make_unique<std::atomic<bool>[]>(places_.size());
  }
  static size_t bytes(const Matmul& call) {
    return Arena::bytes<uint32_t>(words_in(call)) + Arena::bytes<float>(sums_in(call));
  }
  RowBlocks blocks_of(int64_t group) const {
    return call_.blocks(call_.groups[group].end - call_.groups[group].begin);
  }
  int64_t num_blocks() const { return (int64_t)places_.size(); }

  // Prepares one of all blocks. Others may wait for it, so it is ready even if this fails.
  void pack(int64_t i) {
    struct Ready {
      std::atomic<bool>& flag;
      ~Ready() { flag.store(true, std::memory_order_release); }
    } ready{ready_[i]};
    const auto [group, b] = places_[i];
    const Block rows = block(group, b);
    if (call_.weight.rounds_rows())
      return pack_rounded_rows(call_.x, rows.rows, rows.count, call_.groups[group].scales.x_scale,
                               call_.weight.form().zero, call_.weight.in_tiles(), words(group, b),
                               sums(group, b));
    pack_rows(call_.x, rows.rows, rows.count, call_.weight.number, call_.weight.in_tiles(),
              words(group, b));
    if (call_.weight.has_offsets())
      sum_groups(words(group, b), rows.count, call_.weight.in_tiles(), call_.weight.steps(),
                 call_.weight.group_steps(), call_.weight.number, sums(group, b));
  }
  Block block(int64_t group, int64_t b) const {
    const RowBlocks blocks = blocks_of(group);
    return {call_.rows + call_.groups[group].begin + blocks.begin(b), blocks.in(b)};
  }
  const uint32_t* wait_for(int64_t group, int64_t b) const {
    const std::atomic<bool>& ready = ready_[first_[group] + b];
    wait_until([&] { return ready.load(std::memory_order_acquire); });
    return words(group, b);
  }
  // Of a ready block's rows: their sums over groups of k, as sum_groups() writes them, or what
  // pack_rounded_rows() says of them.
  float* sums(int64_t group, int64_t b) const {
    return sums_ + first_row(group, b) * sums_of_row(call_);
  }

 private:
  static int64_t rows_in(const Matmul& call) {
    return call.num_groups ? call.groups[call.num_groups - 1].end : 0;
  }
  static int64_t words_of_row(const Matmul& call) {
    const int64_t steps = call.weight.steps();
    return call.weight.in_tiles() ? (steps + TILE_WORDS - 1) / TILE_WORDS * TILE_WORDS : steps;
  }
  static size_t words_in(const Matmul& call) { return rows_in(call) * words_of_row(call); }
  static int64_t sums_of_row(const Matmul& call) {
    if (call.weight.rounds_rows()) return 2;
    return call.weight.has_offsets() ? call.weight.scale_groups() : 0;
  }
  static size_t sums_in(const Matmul& call) { return rows_in(call) * sums_of_row(call); }
  int64_t first_row(int64_t group, int64_t b) const {
    return call_.groups[group].begin + blocks_of(group).begin(b);
  }
  uint32_t* words(int64_t group, int64_t b) const {
    return words_ + first_row(group, b) * words_of_row(call_);
  }

  struct Place {
    int64_t group, block;
  };
  const Matmul& call_;
  uint32_t* words_;
  float* sums_;
  std::vector<int64_t> first_;  // of each group's blocks
  std::vector<Place> places_;
  std::unique_ptr<std::atomic<bool>[]> ready_;
};

}  // namespace jengine
