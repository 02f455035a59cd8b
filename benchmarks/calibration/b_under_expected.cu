// (b) A phase that expects fewer bytes than the copies post: does it end early, and are bytes that
// come later then still missing?
//
// Every try copies from memory that no cache holds. Threads scan the slot right after the wait.
#include <algorithm>
#include <memory>

#include "host.cuh"
#include "ptx.cuh"

constexpr int kBytes = 32768, kFirst = 4096, kThreads = 256, kTries = 20;
constexpr uint32_t kPoison = 0xcdcdcdcd, kValue = 0x11111111;
enum Kind { kBulk, kBox, kTwoCopies };

struct Count {
  unsigned released, stale, min_stale, max_stale;
};

__global__ void __launch_bounds__(kThreads)
    load(Kind kind, const __grid_constant__ CUtensorMap map, const char* cold, const char* hot,
         uint32_t expect, Count* count) {
  extern __shared__ __align__(1024) char slot[];
  __shared__ uint64_t full;
  __shared__ unsigned stale;
  for (int i = 0; i < kTries; ++i) {
    const size_t piece = (size_t)blockIdx.x * kTries + i;
    for (int w = threadIdx.x; w < kBytes / 4; w += kThreads) ((uint32_t*)slot)[w] = kPoison;
    if (threadIdx.x == 0) {
      mbarrier_init(&full, 1);
      stale = 0;
    }
    fence_proxy_async();
    __syncthreads();
    if (threadIdx.x == 0) {
      arrive_expect_tx(&full, expect);
      const char* source = cold + piece * kBytes;
      if (kind == kBox) {
        tma_load_2d(slot, &map, 0, (int)piece * 256, &full);
      } else if (kind == kBulk) {
        bulk_load(slot, source, kBytes, &full);
      } else {
        bulk_load(slot + kFirst, source + kFirst, kBytes - kFirst, &full);
        bulk_load(slot, hot, kFirst, &full);
      }
    }
    const bool released = wait_limited(&full, 0, 30'000);
    if (released) {
      unsigned mine = 0;
      for (int w = threadIdx.x; w < kBytes / 4; w += kThreads)
        mine += ((volatile uint32_t*)slot)[w] == kPoison;
      if (mine) atomicAdd(&stale, mine * 4);
    }
    const int votes = __syncthreads_count(released);
    if (threadIdx.x == 0) {
      if (votes == kThreads) {
        atomicAdd(&count->released, 1);
        if (stale) {
          atomicAdd(&count->stale, 1);
          atomicMin(&count->min_stale, stale);
          atomicMax(&count->max_stale, stale);
        }
      }
      delay_ns(20'000);  // the copy has landed when its barrier and slot are used again
      mbarrier_inval(&full);
    }
    __syncthreads();
  }
}

int main() {
  const int blocks = multiprocessors();
  const size_t bytes = (size_t)blocks * kTries * kBytes;
  auto* cold = device_alloc<char>(bytes);
  auto* hot = device_words<char>(kFirst, [](size_t) { return kValue; });
  check(cudaMemset(cold, 0x11, bytes), "cudaMemset");
  auto* flush = device_alloc<char>(size_t(256) << 20);
  auto* count = device_alloc<Count>(1);
  check(cudaFuncSetAttribute(load, cudaFuncAttributeMaxDynamicSharedMemorySize, kBytes), "smem");
  CUtensorMap map;
  Map2d shape;
  shape.width = 64;
  shape.height = bytes / 128;
  shape.box_height = 256;
  if (encode(&map, cold, shape) != CUDA_SUCCESS) return 1;
  auto run = [&](Kind kind, const char* name, uint32_t expect) {
    Count start{0, 0, ~0u, 0};
    check(cudaMemcpy(count, &start, sizeof start, cudaMemcpyHostToDevice), "cudaMemcpy");
    check(cudaMemset(flush, 1, size_t(256) << 20), "cudaMemset");
    load<<<blocks, kThreads, kBytes>>>(kind, map, cold, hot, expect, count);
    const std::string end = end_of_kernel();
    Line line("b", std::string(name) + ", expects " + std::to_string(expect));
    if (end == "ok") {
      const Count got = to_host(count, 1)[0];
      line.add("n_tries", blocks * kTries).add("n_released", got.released);
      line.add("n_released_with_missing_bytes", got.stale);
      if (got.stale)
        line.add("min_missing_bytes", got.min_stale).add("max_missing_bytes", got.max_stale);
    }
    line.add("end", end).print();
  };
  for (uint32_t expect :
       {16, 32, 48, 64, 96, 128, 256, 512, 1024, 2048, 4096, 16384, 32752, 32768}) {
    run(kBulk, "one bulk copy of 32768", expect);
    run(kBox, "one box of 64 x 256 float16", expect);
  }
  for (uint32_t expect : {kFirst, kBytes - kFirst, kBytes})
    run(kTwoCopies, "copies of 28672 (cold) and 4096 (cached)", expect);
}
