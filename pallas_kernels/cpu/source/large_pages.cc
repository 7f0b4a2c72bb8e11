#include "large_pages.h"

#if defined(__linux__)
#include <sys/mman.h>
#endif

namespace jengine {
namespace {

constexpr uintptr_t LARGE = 2 << 20;
// Arrays of fewer bytes stay on the pages that they are on.
constexpr int64_t LEAST_COLLAPSED = 1 << 18;

}  // namespace

void advise_large_pages(char* memory, int64_t bytes) {
#if defined(__linux__) && defined(MADV_HUGEPAGE)
  const uintptr_t begin = ((uintptr_t)memory + LARGE - 1) / LARGE * LARGE;
  const uintptr_t end = ((uintptr_t)memory + bytes) / LARGE * LARGE;
  if (begin < end) madvise((void*)begin, end - begin, MADV_HUGEPAGE);
#else
  (void)memory;
  (void)bytes;
#endif
}

void collapse_into_large_pages(char* memory, int64_t bytes) {
#if defined(__linux__) && defined(MADV_HUGEPAGE)
  constexpr int collapse = 25;  // MADV_COLLAPSE of Linux 6.1: at once
  if (bytes < LEAST_COLLAPSED) return;
  const uintptr_t begin = (uintptr_t)memory / LARGE * LARGE;
  const uintptr_t end = ((uintptr_t)memory + bytes + LARGE - 1) / LARGE * LARGE;
  madvise((void*)begin, end - begin, MADV_HUGEPAGE);
  madvise((void*)begin, end - begin, collapse);
#else
  (void)memory;
  (void)bytes;
#endif
}

}  // namespace jengine
