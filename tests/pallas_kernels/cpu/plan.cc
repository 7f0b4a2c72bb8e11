// Prints the tasks of a matmul: arguments are threads, panels, grain and the rows of each group. Without
// any, the rows of a block.
#include <cstdio>
#include <cstdlib>

#include "matmul_plan.h"
#include "micro_kernel.h"

int main(int count, char** given) {
  if (count == 1) return std::printf("%d\n", jengine::MOST_ROWS) < 0;
  std::vector<int64_t> rows;
  for (int i = 4; i < count; i++) rows.push_back(std::atoll(given[i]));
  for (const jengine::MatmulTask& task :
       jengine::plan_matmul(rows, std::atoll(given[2]), std::atoll(given[3]), std::atoll(given[1]),
                            jengine::MOST_ROWS))
    std::printf("%lld %lld %lld %lld %lld\n", (long long)task.group, (long long)task.first_block,
                (long long)task.last_block, (long long)task.first_panel,
                (long long)task.last_panel);
}
