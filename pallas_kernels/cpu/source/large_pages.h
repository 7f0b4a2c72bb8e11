// Memory that the system maps in large pages.
#pragma once

#include <cstdint>

namespace jengine {

// Asks for large pages where memory has not been touched: pages of 4 kB take a lookup each, which
// costs more than reading one from a cache of several GB. This is only advice: it may fail.
void advise_large_pages(char* memory, int64_t bytes);

// The same for memory in use. Arrays of a model's layers are often smaller than a large page and lie
// side by side, so the pages at both ends are asked for as well.
void collapse_into_large_pages(char* memory, int64_t bytes);

}  // namespace jengine
