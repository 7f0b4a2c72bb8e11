// How a matmul is divided into tasks: pieces of the weight's panels times parts of the rows' blocks.
//
// Threads claim tasks as they become free, so none belongs to a core. On a machine with several
// memory nodes a weight lies where the threads that packed it ran, spread over the nodes; an engine
// per node, bound to it, reads near memory only.
#pragma once

#include <cstdint>
#include <vector>

namespace jengine {

struct MatmulTask {
  int64_t group;  // which weight; 0 where all rows share one
  int64_t first_block, last_block, first_panel, last_panel;
};

// Tasks for so many threads, the largest first. `rows` has the number of rows of each group; pieces
// are multiples of `grain` panels, so that no two tasks write to one cache line. A block has
// `most_rows` at most.
std::vector<MatmulTask> plan_matmul(const std::vector<int64_t>& rows, int64_t panels, int64_t grain,
                                    int64_t threads, int64_t most_rows);

}  // namespace jengine
