#include "tasks.h"

namespace jengine {

Scratch& call_scratch() {
  thread_local Scratch scratch;
  return scratch;
}

Scratch& task_scratch() {
  thread_local Scratch scratch;
  return scratch;
}

}  // namespace jengine
