// Matrix tiles (Intel's AMX): registers of 16 rows of 64 bytes, and instructions that multiply two.
//
// A left tile has rows of 32 bfloat16, a right one 16 pairs of k by 16 columns: half a panel's width. Or
// rows of 64 signed bytes, and 16 times four unsigned ones.
// Built with -DJENGINE_PLAIN_TILES, plain C++ does the same, so that any machine can test what is
// written for tiles.
#pragma once

#include <array>
#include <cstdint>
#include <cstring>

#if defined(__AMX_TILE__) && defined(__AMX_BF16__) && defined(__AMX_INT8__) && \
    defined(__linux__) && !defined(JENGINE_PLAIN_TILES)
#define JENGINE_AMX 1
#include <sys/syscall.h>
#include <unistd.h>
#endif

namespace jengine {

#if defined(JENGINE_AMX) || defined(JENGINE_PLAIN_TILES)
constexpr bool BUILT_WITH_TILES = true;
#else
constexpr bool BUILT_WITH_TILES = false;
#endif
constexpr int TILE_ROWS = 16, TILE_BYTES = 64;  // of a row
constexpr int64_t TILE_WORDS = TILE_BYTES / 4;  // pairs of bfloat16, or columns of sums

// What the registers hold: sums of two left tiles, of `rows0` and `rows1` rows, times two right ones.
enum Tile { SUM00, SUM01, SUM10, SUM11, LEFT0, LEFT1, RIGHT0, RIGHT1, NUM_TILES };
inline std::array<int, NUM_TILES> rows_of_tiles(int rows0, int rows1) {
  return {rows0, rows0, rows1, rows1, rows0, rows1, TILE_ROWS, TILE_ROWS};
}

#if defined(JENGINE_AMX)
// Asks Linux once for the registers, which it keeps only for processes that asked. A container or an
// old kernel may refuse, whatever the processor says.
inline bool may_use_tiles() {
  constexpr int REQUEST_PERMISSION = 0x1023, TILE_DATA = 18;
  static const bool granted = syscall(SYS_arch_prctl, REQUEST_PERMISSION, TILE_DATA) == 0;
  return granted;
}
// Gives all tiles a shape and zeros. A tile without rows must not be used.
inline void configure_tiles(int rows0, int rows1) {
  struct alignas(64) {
    uint8_t palette = 1, start_row = 0, reserved[14] = {};
    uint16_t row_bytes[16] = {};
    uint8_t rows[16] = {};
  } wanted;
  const std::array<int, NUM_TILES> rows = rows_of_tiles(rows0, rows1);
  for (int tile = 0; tile < NUM_TILES; tile++) {
    wanted.rows[tile] = (uint8_t)rows[tile];
    wanted.row_bytes[tile] = rows[tile] ? TILE_BYTES : 0;
  }
  asm volatile("ldtilecfg (%0)" ::"r"(&wanted) : "memory");
}
// Without it, the system would keep 8 KB of an idle thread at each switch.
inline void release_tiles() { asm volatile("tilerelease"); }
template <int TILE>
void clear_tile() {
  asm volatile("tilezero %%tmm%c0" ::"i"(TILE));
}
template <int TILE>
void load_tile(const void* from, int64_t pitch) {
  asm volatile("tileloadd (%0,%1,1), %%tmm%c2" ::"r"(from), "r"(pitch), "i"(TILE) : "memory");
}
template <int TILE>
void store_tile(void* to, int64_t pitch) {
  asm volatile("tilestored %%tmm%c2, (%0,%1,1)" ::"r"(to), "r"(pitch), "i"(TILE) : "memory");
}
template <int SUM, int LEFT, int RIGHT>
void dot_tiles() {
  asm volatile("tdpbf16ps %%tmm%c2, %%tmm%c1, %%tmm%c0" ::"i"(SUM), "i"(LEFT), "i"(RIGHT));
}
template <int SUM, int LEFT, int RIGHT>
void dot_byte_tiles() {
  asm volatile("tdpbsud %%tmm%c2, %%tmm%c1, %%tmm%c0" ::"i"(SUM), "i"(LEFT), "i"(RIGHT));
}
#else
struct PlainTiles {
  std::array<int, NUM_TILES> rows;
  char bytes[NUM_TILES][TILE_ROWS * TILE_BYTES];
};
inline PlainTiles& plain_tiles() {
  static thread_local PlainTiles tiles;
  return tiles;
}
inline uint32_t tile_word(int tile, int row, int at) {
  uint32_t found;
  std::memcpy(&found, plain_tiles().bytes[tile] + row * TILE_BYTES + at * 4, sizeof found);
  return found;
}
// Calls next(sum, row, column) for each word of the sums, and stores what it returns.
template <int SUM, class Next>
void change_sums(const Next& next) {
  for (int r = 0; r < plain_tiles().rows[SUM]; r++)
    for (int column = 0; column < TILE_WORDS; column++) {
      const uint32_t sum = next(tile_word(SUM, r, column), r, column);
      std::memcpy(plain_tiles().bytes[SUM] + r * TILE_BYTES + column * 4, &sum, sizeof sum);
    }
}
inline bool may_use_tiles() { return BUILT_WITH_TILES; }
inline void configure_tiles(int rows0, int rows1) {
  plain_tiles() = {rows_of_tiles(rows0, rows1), {}};
}
inline void release_tiles() { plain_tiles() = {}; }
template <int TILE>
void clear_tile() {
  std::memset(plain_tiles().bytes[TILE], 0, sizeof plain_tiles().bytes[TILE]);
}
template <int TILE>
void load_tile(const void* from, int64_t pitch) {
  for (int r = 0; r < plain_tiles().rows[TILE]; r++)
    std::memcpy(plain_tiles().bytes[TILE] + r * TILE_BYTES,
                static_cast<const char*>(from) + r * pitch, TILE_BYTES);
}
template <int TILE>
void store_tile(void* to, int64_t pitch) {
  for (int r = 0; r < plain_tiles().rows[TILE]; r++)
    std::memcpy(static_cast<char*>(to) + r * pitch,
                plain_tiles().bytes[TILE] + r * TILE_BYTES, TILE_BYTES);
}
// In the processor's order: even and odd numbers of k apart, then both to the sum.
template <int SUM, int LEFT, int RIGHT>
void dot_tiles() {
  const auto number = [](uint32_t bits) {
    float found;
    std::memcpy(&found, &bits, sizeof found);
    return found;
  };
  change_sums<SUM>([&](uint32_t sum, int r, int column) {
    float even = 0.0f, odd = 0.0f;
    for (int k = 0; k < TILE_WORDS; k++) {
      const uint32_t a = tile_word(LEFT, r, k), b = tile_word(RIGHT, k, column);
      even = __builtin_fmaf(number(a << 16), number(b << 16), even);
      odd = __builtin_fmaf(number(a & 0xffff0000u), number(b & 0xffff0000u), odd);
    }
    const float all = number(sum) + (even + odd);
    std::memcpy(&sum, &all, sizeof sum);
    return sum;
  });
}
template <int SUM, int LEFT, int RIGHT>
void dot_byte_tiles() {
  change_sums<SUM>([](uint32_t sum, int r, int column) {
    for (int k = 0; k < TILE_WORDS; k++)
      for (int byte = 0; byte < 32; byte += 8)
        sum += (uint32_t)((int8_t)(tile_word(LEFT, r, k) >> byte) *
                          (uint8_t)(tile_word(RIGHT, k, column) >> byte));
    return sum;
  });
}
#endif

}  // namespace jengine
