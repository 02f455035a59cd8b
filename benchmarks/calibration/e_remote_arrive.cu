// (e) An access to shared memory of a CTA of the cluster that has left: fault, silence, or neither?
//
// Usage: <program> <access> <delay ns>. CTA 1 of a cluster of two leaves, CTA 0 waits and accesses.
// "resident" as third argument keeps CTA 1 there: the control.
#include <cstring>

#include "host.cuh"
#include "ptx.cuh"

enum Access { kArrive, kArriveCluster, kStore, kLoad, kMulticast, kNone };
const char* const kNames[] = {"arrive", "arrive.release.cluster", "store", "load",
                              "multicast copy", "none"};
constexpr int kBytes = 1024;

__global__ void __cluster_dims__(2, 1, 1)
    touch(Access access, long long delay, bool resident, const char* source, unsigned* out) {
  __shared__ alignas(128) char slot[kBytes];
  __shared__ uint64_t bar;
  if (threadIdx.x == 0) mbarrier_init(&bar, 1);
  cluster_sync();
  const uint32_t remote = remote_address(&bar, 1);
  if (cluster_rank() == 1) {
    if (resident) cluster_sync();
    return;
  }
  if (threadIdx.x == 0) {
    delay_ns(delay);
    if (access == kArrive) {
      asm volatile("mbarrier.arrive.shared::cluster.b64 _, [%0];" ::"r"(remote) : "memory");
    } else if (access == kArriveCluster) {
      asm volatile("mbarrier.arrive.release.cluster.shared::cluster.b64 _, [%0];" ::"r"(remote)
                   : "memory");
    } else if (access == kStore) {
      asm volatile("st.shared::cluster.u32 [%0], %1;" ::"r"(remote_address(slot, 1)), "r"(1)
                   : "memory");
    } else if (access == kLoad) {
      unsigned value;
      asm volatile("ld.shared::cluster.u32 %0, [%1];"
                   : "=r"(value) : "r"(remote_address(slot, 1)) : "memory");
      out[1] = value;
    } else if (access == kMulticast) {
      arrive_expect_tx(&bar, kBytes);
      asm volatile(
          "cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes.multicast::cluster"
          " [%0], [%1], %2, [%3], %4;" ::"r"(smem(slot)), "l"(source), "r"(kBytes),
          "r"(smem(&bar)), "h"((uint16_t)3) : "memory");
      out[2] = wait_limited(&bar, 0, 1'000'000);
    }
    delay_ns(100'000);  // an access that faults does so before the last CTA leaves
    out[0] = 1;
  }
  __syncwarp();
  if (resident) cluster_sync();
}

int main(int argc, char** argv) {
  if (argc < 3) return 2;
  int access = 0;
  while (access < 5 && std::strcmp(kNames[access], argv[1])) ++access;
  const bool resident = argc > 3;
  auto* source = device_alloc<char>(kBytes);
  auto* out = device_alloc<unsigned>(4);
  touch<<<64, 32>>>((Access)access, std::atoll(argv[2]), resident, source, out);
  const std::string end = end_of_kernel();
  Line line("e", std::string(kNames[access]) + ", " +
                     (resident ? std::string("target resident")
                               : "target left " + std::string(argv[2]) + " ns before"));
  line.add("n_launches", 1);
  if (end == "ok") {
    const auto got = to_host(out, 4);
    line.add("went_on", got[0] ? "yes" : "no");
    if (access == kMulticast) line.add("own_copy_completed", got[2] ? "yes" : "no");
  }
  line.add("end", end).print();
}
