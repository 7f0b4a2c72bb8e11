// Carries out matrix-tile instructions (AMX) on processors that do not have them, one signal each.
//
// To be preloaded. What the processor would refuse ends the program: a shape that a tile cannot have,
// operands that do not fit, a tile without rows.
#include <signal.h>
#include <sys/syscall.h>
#include <ucontext.h>
#include <unistd.h>

#include <cerrno>
#include <cmath>
#include <cstdarg>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <utility>

namespace {

struct Tile {
  int rows, row_bytes;
  alignas(64) char data[16][64];
};
thread_local Tile tiles[8];

[[noreturn]] void refuse(const char* what) {
  std::fprintf(stderr, "a tile instruction is refused: %s\n", what);
  std::abort();
}

// An instruction of three bytes of prefix, a number, and its operands.
struct Instruction {
  const uint8_t* at;
  greg_t* registers;
  int64_t length = 5;

  bool is(int opcode, int prefix) const { return at[3] == opcode && (at[2] & 3) == prefix; }
  int mode() const { return at[4] >> 6; }
  int first() const { return at[4] >> 3 & 7; }
  int second() const { return at[4] & 7; }
  int third() const { return ~(at[2] >> 3) & 15; }
  int64_t value(int number) const {
    static constexpr int ORDER[] = {REG_RAX, REG_RCX, REG_RDX, REG_RBX, REG_RSP, REG_RBP,
                                    REG_RSI, REG_RDI, REG_R8,  REG_R9,  REG_R10, REG_R11,
                                    REG_R12, REG_R13, REG_R14, REG_R15};
    return registers[ORDER[number]];
  }
  // The address of an operand in memory; with an index, that is the distance of rows.
  char* address(int64_t* pitch) {
    const int more = at[1] & 0x20 ? 0 : 8;
    int base = second() | more;
    if (second() == 4) {
      const int sib = at[length++], index = (sib >> 3 & 7) | (at[1] & 0x40 ? 0 : 8);
      base = (sib & 7) | more;
      *pitch = index == 4 ? 0 : value(index) << (sib >> 6);
    } else if (mode() == 0 && second() == 5) {
      refuse("relative to the instruction");
    }
    int32_t distance = 0;
    if (mode() == 1) distance = (int8_t)at[length++];
    if (mode() == 2) std::memcpy(&distance, at + length, 4), length += 4;
    return reinterpret_cast<char*>(value(base)) + distance;
  }
};

void configure(const char* wanted) {
  if (wanted[0] != 1 || wanted[1] != 0) refuse("palette");
  for (int i = 2; i < 16; i++)
    if (wanted[i]) refuse("reserved bytes");
  for (int i = 0; i < 16; i++) {
    uint16_t row_bytes;
    std::memcpy(&row_bytes, wanted + 16 + 2 * i, 2);
    const int rows = (uint8_t)wanted[48 + i];
    if (rows > 16 || row_bytes > 64 || !rows != !row_bytes || (i >= 8 && rows)) refuse("shape");
    if (i < 8) tiles[i] = {rows, row_bytes, {}};
  }
}

Tile& used(int number) {
  if (number > 7 || !tiles[number].rows) refuse("a tile without rows");
  return tiles[number];
}

float as_float(uint32_t bits) {
  float found;
  std::memcpy(&found, &bits, sizeof found);
  return std::fpclassify(found) == FP_SUBNORMAL ? 0.0f : found;
}
uint32_t word(const Tile& tile, int row, int at) {
  uint32_t found;
  std::memcpy(&found, tile.data[row] + 4 * at, sizeof found);
  return found;
}

void multiply(Tile& sums, const Tile& a, const Tile& b, bool bytes) {
  if (sums.rows != a.rows || a.row_bytes / 4 != b.rows || b.row_bytes != sums.row_bytes)
    refuse("shapes of operands");
  for (int m = 0; m < sums.rows; m++)
    for (int n = 0; n < sums.row_bytes / 4; n++) {
      uint32_t sum = word(sums, m, n);
      float even = 0.0f, odd = 0.0f;
      for (int k = 0; k < b.rows; k++) {
        const uint32_t x = word(a, m, k), y = word(b, k, n);
        for (int i = 0; bytes && i < 32; i += 8)
          sum += (uint32_t)((int8_t)(x >> i) * (int)(uint8_t)(y >> i));
        even = std::fma(as_float(x << 16), as_float(y << 16), even);
        odd = std::fma(as_float(x & 0xffff0000u), as_float(y & 0xffff0000u), odd);
      }
      const float all = as_float(sum) + (even + odd);
      if (!bytes) std::memcpy(&sum, &all, sizeof sum);
      std::memcpy(sums.data[m] + 4 * n, &sum, sizeof sum);
    }
}

void carry_out(int, siginfo_t*, void* context) {
  greg_t* registers = static_cast<ucontext_t*>(context)->uc_mcontext.gregs;
  Instruction one{reinterpret_cast<const uint8_t*>(registers[REG_RIP]), registers};
  int64_t pitch = 0;
  if (one.at[0] != 0xc4 || (one.at[1] & 31) != 2) refuse("not one of a tile");
  if (one.is(0x49, 0) && one.mode() == 3) {
    std::memset(tiles, 0, sizeof tiles);
  } else if (one.is(0x49, 0)) {
    configure(one.address(&pitch));
  } else if (one.is(0x49, 3)) {
    std::memset(used(one.first()).data, 0, sizeof tiles[0].data);
  } else if (one.is(0x4b, 3) || one.is(0x4b, 2)) {
    Tile& tile = used(one.first());
    char* at = one.address(&pitch);
    for (int r = 0; r < tile.rows; r++) {
      char *from = at + r * pitch, *to = tile.data[r];
      if (one.is(0x4b, 2)) std::swap(from, to);
      std::memcpy(to, from, tile.row_bytes);
    }
  } else if (one.is(0x5c, 2) || one.is(0x5e, 2)) {
    multiply(used(one.first()), used(one.second()), used(one.third()), one.at[3] == 0x5e);
  } else {
    refuse("an unknown one");
  }
  registers[REG_RIP] += one.length;
}

__attribute__((constructor)) void begin() {
  struct sigaction action {};
  action.sa_sigaction = carry_out;
  action.sa_flags = SA_SIGINFO | SA_NODEFER;
  sigaction(SIGILL, &action, nullptr);
}

}  // namespace

// Grants what Linux is asked for before the first tile instruction.
extern "C" long syscall(long number, ...) {
  long given[6];
  va_list list;
  va_start(list, number);
  for (long& one : given) one = va_arg(list, long);
  va_end(list);
  if (number == SYS_arch_prctl && given[0] == 0x1023) return given[1] == 18 ? 0 : -1;
  register long r10 asm("r10") = given[3];
  register long r8 asm("r8") = given[4];
  register long r9 asm("r9") = given[5];
  long found;
  asm volatile("syscall"
               : "=a"(found)
               : "a"(number), "D"(given[0]), "S"(given[1]), "d"(given[2]), "r"(r10), "r"(r8), "r"(r9)
               : "rcx", "r11", "memory");
  if (found >= 0 || found < -4095) return found;
  errno = (int)-found;
  return -1;
}
