// (h) Does it matter whether bar.sync or barrier.sync is used, when one barrier is reached from two
// places of the program?
//
// Usage: <program> <instruction> <who>. "warps": whole warps take different places. "lanes": half
// of each warp goes to each place, which the aligned form forbids. A watching warp ends what hangs.
#include <cstring>

#include "host.cuh"
#include "ptx.cuh"

constexpr int kThreads = 256, kTurns = 2000;
constexpr uint64_t kLimit = 300'000'000;  // ns

struct Count {
  unsigned wrong, finished;
};

template <bool aligned>
DEVICE void sync() {
  if (aligned)
    asm volatile("bar.sync 1, 256;" ::: "memory");
  else
    asm volatile("barrier.sync 1, 256;" ::: "memory");
}

template <bool aligned, bool lanes>
__global__ void meet(Count* count, volatile unsigned* hung) {
  __shared__ volatile int box[kThreads];
  __shared__ volatile int finished;
  if (threadIdx.x == 0) finished = 0;
  __syncthreads();
  if (threadIdx.x >= kThreads) {
    for (const uint64_t start = now_ns(); finished < kThreads;)
      if (now_ns() - start > kLimit) {
        *hung = 1;  // in the host's memory: nothing else outlives the trap
        __threadfence_system();
        asm volatile("trap;");
      }
    return;
  }
  const int me = threadIdx.x, other = kThreads - 1 - me;
  const bool here = lanes ? me % 32 < 16 : me < kThreads / 2;
  unsigned wrong = 0;
#pragma unroll 1  // exactly four places
  for (int i = 1; i <= kTurns; ++i) {
    if (here) {  // the two branches differ, so that they are not merged into one place
      box[me] = i * 3;
      sync<aligned>();
      wrong += box[other] != i * 5;
      sync<aligned>();
    } else {
      box[me] = i * 5;
      sync<aligned>();
      wrong += box[other] != i * 3;
      sync<aligned>();
    }
  }
  if (wrong) atomicAdd(&count->wrong, wrong);
  atomicAdd(&count->finished, 1);
  atomicAdd((int*)&finished, 1);
}

int main(int argc, char** argv) {
  if (argc < 3) return 2;
  const bool aligned = !std::strcmp(argv[1], "bar.sync"), lanes = !std::strcmp(argv[2], "lanes");
  auto* count = device_alloc<Count>(1);
  unsigned* hung;
  check(cudaMallocHost(&hung, sizeof *hung), "cudaMallocHost");
  *hung = 0;
  auto kernel = aligned ? (lanes ? meet<true, true> : meet<true, false>)
                        : (lanes ? meet<false, true> : meet<false, false>);
  const int blocks = multiprocessors();
  kernel<<<blocks, kThreads + 32>>>(count, hung);
  const std::string end = end_of_kernel();
  Line line("h", std::string(argv[1]) + ", two places, " +
                     (lanes ? "half of each warp at each" : "whole warps"));
  if (end == "ok") {
    const Count got = to_host(count, 1)[0];
    line.add("n_meetings", (long long)blocks * kTurns * 2).add("n_wrong_values", got.wrong);
    line.add("n_threads_finished", got.finished);
  }
  line.add("hung", *hung ? "yes" : "no").add("end", end).print();
}
