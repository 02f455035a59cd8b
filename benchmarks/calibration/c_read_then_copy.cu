// (c) Generic reads of a slot, a release, then a bulk copy into the slot, without fence.proxy.async
// between: is a value of the next copy ever read?
//
// "conflicts": each of eight reads in flight is a 32-way bank conflict, four CTAs a multiprocessor;
// "plain": no conflict, one CTA. Values are used only after the release, except in the control
// "used before the release", whose reads are over by then. "release before the reads" is the
// control that should go wrong.
#include "host.cuh"
#include "ptx.cuh"

constexpr int kReaders = 256, kSlot = 4096, kReads = 8, kVersions = 16, kTurns = 20'000;
enum Order { kFence, kNoFence, kUsedBefore, kReleaseFirst };
enum Release { kMbarrier, kElected, kBlockBarrier };

struct Count {
  unsigned long long wrong_turns, wrong_words, next_words;
  unsigned timeouts;
};

template <Order order, Release release>
DEVICE void release_slot(uint64_t* empty) {
  if (order == kFence) fence_proxy_async();
  if (release == kMbarrier) {
    arrive(empty);
  } else if (release == kElected) {
    __syncwarp();
    if (threadIdx.x % 32 == 0) arrive(empty);
  } else {
    asm volatile("barrier.sync 1, 288;" ::: "memory");
  }
}

template <Order order, Release release, bool box, bool conflicts>
__global__ void __launch_bounds__(kReaders + 32)
    turns(const __grid_constant__ CUtensorMap map, const char* source, Count* count) {
  __shared__ alignas(1024) uint32_t slot[kSlot / 4];
  __shared__ uint32_t right[kVersions];  // read after the release, so that nobody waits before it
  __shared__ uint64_t full, empty;
  if (threadIdx.x < kVersions) right[threadIdx.x] = threadIdx.x;
  if (threadIdx.x == 0) {
    mbarrier_init(&full, 1);
    mbarrier_init(&empty, release == kElected ? kReaders / 32 : kReaders);
  }
  __syncthreads();
  if (threadIdx.x >= kReaders) {
    for (int i = 0; i < kTurns; ++i) {
      const int version = i % kVersions;
      if (release == kBlockBarrier && i) asm volatile("barrier.sync 1, 288;" ::: "memory");
      if (threadIdx.x == kReaders) {
        if (release != kBlockBarrier && !wait_limited(&empty, (i & 1) ^ 1, 10'000'000))
          atomicAdd(&count->timeouts, 1);
        arrive_expect_tx(&full, kSlot);
        if (box)
          tma_load_2d(slot, &map, 0, version * 32, &full);
        else
          bulk_load(slot, source + version * kSlot, kSlot, &full);
      }
      __syncwarp();
    }
    if (release == kBlockBarrier) asm volatile("barrier.sync 1, 288;" ::: "memory");
    return;
  }
  const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
  unsigned wrong_turns = 0, wrong_words = 0, next_words = 0;
  for (int i = 0; i < kTurns; ++i) {
    if (!wait_limited(&full, i & 1, 10'000'000)) atomicAdd(&count->timeouts, 1);
    if (order == kReleaseFirst) release_slot<kReleaseFirst, release>(&empty);
    uint32_t got[kReads];
#pragma unroll
    for (int j = 0; j < kReads; ++j)
      asm volatile("ld.shared.u32 %0, [%1];"
                   : "=r"(got[j])
                   : "r"(smem(&slot[conflicts ? lane * 32 + (warp + 4 * j) % 32
                                              : ((warp + 4 * j) % 32) * 32 + lane]))
                   : "memory");
    if (order == kUsedBefore) {  // a branch that needs them all: the reads are done after it
      uint32_t all = 0;
#pragma unroll
      for (int j = 0; j < kReads; ++j) all |= got[j];
      if (all >= kVersions) __trap();
    }
    if (order != kReleaseFirst) release_slot<order, release>(&empty);
    uint32_t want;
    asm volatile("ld.volatile.shared.u32 %0, [%1];"
                 : "=r"(want) : "r"(smem(&right[i % kVersions])) : "memory");
    unsigned wrong = 0;
#pragma unroll
    for (int j = 0; j < kReads; ++j) {
      wrong += got[j] != want;
      next_words += got[j] == (want + 1) % kVersions;
    }
    wrong_words += wrong;
    wrong_turns += __any_sync(~0u, wrong) && lane == 0;
  }
  if (wrong_words) {
    atomicAdd(&count->wrong_words, wrong_words);
    atomicAdd(&count->wrong_turns, wrong_turns);
    atomicAdd(&count->next_words, next_words);
  }
}

template <Order order, Release release, bool box, bool conflicts>
void run(const CUtensorMap& map, const char* source, Count* count) {
  const char* orders[] = {"with fence", "without fence", "control, values used before the release",
                          "control, release before the reads"};
  const char* releases[] = {"each thread arrives", "one lane a warp arrives", "barrier.sync"};
  const int blocks = multiprocessors() * (conflicts ? 4 : 1);
  check(cudaMemset(count, 0, sizeof(Count)), "cudaMemset");
  turns<order, release, box, conflicts><<<blocks, kReaders + 32>>>(map, source, count);
  const std::string end = end_of_kernel();
  Line line("c", std::string(orders[order]) + "; " + releases[release] +
                     (box ? "; tensor copy" : "; bulk copy") +
                     (conflicts ? "; conflicts" : "; plain"));
  if (end == "ok") {
    const Count got = to_host(count, 1)[0];
    line.add("n_copies", (long long)blocks * kTurns);
    line.add("n_warp_turns", (long long)blocks * kTurns * (kReaders / 32));
    line.add("n_warp_turns_with_a_wrong_value", (long long)got.wrong_turns);
    line.add("n_wrong_words", (long long)got.wrong_words);
    line.add("n_of_them_from_the_next_copy", (long long)got.next_words);
    line.add("n_timeouts", got.timeouts);
  }
  line.add("end", end).print();
}

template <Release release, bool box, bool conflicts>
void run_orders(const CUtensorMap& map, const char* source, Count* count) {
  run<kFence, release, box, conflicts>(map, source, count);
  run<kNoFence, release, box, conflicts>(map, source, count);
  run<kUsedBefore, release, box, conflicts>(map, source, count);
  run<kReleaseFirst, release, box, conflicts>(map, source, count);
}

int main() {
  auto* source = device_words<char>(kVersions * kSlot, [](size_t i) { return i / (kSlot / 4); });
  auto* count = device_alloc<Count>(1);
  CUtensorMap map;
  Map2d shape;
  shape.width = 64;
  shape.height = kVersions * 32;
  shape.box_height = 32;
  if (encode(&map, source, shape) != CUDA_SUCCESS) return 1;
  run_orders<kMbarrier, false, true>(map, source, count);
  run_orders<kElected, true, true>(map, source, count);
  run_orders<kBlockBarrier, false, true>(map, source, count);
  run_orders<kElected, false, false>(map, source, count);
  run_orders<kBlockBarrier, true, false>(map, source, count);
}
