// (d) A CTA leaves while its bulk stores have not read their shared memory yet. Is what they store
// ever wrong? The next CTA of the multiprocessor overwrites that memory at once.
#include "host.cuh"
#include "ptx.cuh"

constexpr int kThreads = 256, kWaves = 24, kPiece = 16384;
enum Leave { kUncommitted, kCommitted, kWaitRead, kOverwrite };

DEVICE uint32_t pattern(uint32_t block, uint32_t word) { return block * 2654435761u + word; }

template <Leave leave>
__global__ void __launch_bounds__(kThreads) store(uint32_t* out, int bytes) {
  extern __shared__ __align__(1024) uint32_t tile[];
  const int words = bytes / 4;
  for (int w = threadIdx.x; w < words; w += kThreads) tile[w] = pattern(blockIdx.x, w);
  fence_proxy_async();
  __syncthreads();
  if (threadIdx.x == 0) {
    for (int at = 0; at < bytes; at += kPiece)
      bulk_store((char*)(out + (size_t)blockIdx.x * words) + at, (char*)tile + at, kPiece);
    if (leave != kUncommitted) bulk_commit();
    if (leave == kWaitRead) bulk_wait_read();
  }
  if (leave == kOverwrite) {  // the control: the same CTA overwrites what is being read
    __syncthreads();
    for (int w = threadIdx.x; w < words; w += kThreads) tile[w] = ~pattern(blockIdx.x, w);
  }
}

__global__ void verify(const uint32_t* out, int words, unsigned long long* wrong) {
  unsigned mine = 0;
  for (int w = threadIdx.x; w < words; w += blockDim.x)
    mine += out[(size_t)blockIdx.x * words + w] != pattern(blockIdx.x, w);
  if (mine) {
    atomicAdd(&wrong[0], mine);
    if (atomicExch(&wrong[2 + blockIdx.x], 1) == 0) atomicAdd(&wrong[1], 1);
  }
}

template <Leave leave>
void run(const char* name, int bytes) {
  const int blocks = multiprocessors() * (196608 / bytes) * kWaves;
  auto* out = device_alloc<uint32_t>((size_t)blocks * bytes / 4);
  auto* wrong = device_alloc<unsigned long long>(blocks + 2);
  check(cudaFuncSetAttribute(store<leave>, cudaFuncAttributeMaxDynamicSharedMemorySize, bytes),
        "smem");
  cudaEvent_t start, stop;
  check(cudaEventCreate(&start), "event");
  check(cudaEventCreate(&stop), "event");
  check(cudaEventRecord(start), "event");
  store<leave><<<blocks, kThreads, bytes>>>(out, bytes);
  check(cudaEventRecord(stop), "event");
  const std::string end = end_of_kernel();
  Line line("d", std::string(name) + ", " + std::to_string(bytes / 1024) + " KiB a CTA");
  if (end == "ok") {
    float ms;
    check(cudaEventElapsedTime(&ms, start, stop), "event");
    verify<<<blocks, kThreads>>>(out, bytes / 4, wrong);
    check(cudaDeviceSynchronize(), "verify");
    const auto got = to_host(wrong, 2);
    line.add("n_ctas", blocks).add("n_ctas_with_wrong_words", (long long)got[1]);
    line.add("n_wrong_words", (long long)got[0]);
    line.add("min_us", (long long)(ms * 1000)).add("max_us", (long long)(ms * 1000));
  }
  line.add("end", end).print();
  cudaFree(out);
  cudaFree(wrong);
}

int main() {
  for (int bytes : {196608, 49152}) {
    run<kWaitRead>("wait_group.read before exit", bytes);
    run<kCommitted>("exit after commit_group", bytes);
    run<kUncommitted>("exit without commit_group", bytes);
    run<kOverwrite>("control, overwritten after commit_group", bytes);
  }
}
