// (f) What does one mbarrier.try_wait return, and after how long, on a phase that stays open and on
// one that ends during the wait; how many calls does a loop make?
#include <algorithm>

#include "host.cuh"
#include "ptx.cuh"

constexpr int kTries = 50;
enum Wait { kTest, kTry, kTryHint };

struct Sample {
  unsigned done, ns;
};

template <Wait wait>
DEVICE bool once(uint64_t* bar, unsigned hint) {
  if (wait == kTest) return test_wait(bar, 0);
  if (wait == kTry) return try_wait(bar, 0);
  uint32_t done;
  asm volatile(
      "{.reg .pred p; mbarrier.try_wait.parity.shared::cta.b64 p, [%1], 0, %2;"
      " selp.u32 %0, 1, 0, p;}"
      : "=r"(done) : "r"(smem(bar)), "r"(hint) : "memory");
  return done;
}

// The time when `done` is known: the two reads are predicated on it.
DEVICE uint64_t now_ns_after(bool done) {
  uint64_t t = 0;
  asm volatile(
      "{.reg .pred p; setp.ne.u32 p, %1, 0;"
      " @p mov.u64 %0, %%globaltimer; @!p mov.u64 %0, %%globaltimer;}"
      : "+l"(t) : "r"((unsigned)done));
  return t;
}

// Warp 0 waits once; warp 1 arrives after `arrive_after` ns, if at all.
template <Wait wait>
__global__ void measure(unsigned hint, long long arrive_after, Sample* samples) {
  __shared__ uint64_t bar;
  for (int i = 0; i < kTries; ++i) {
    if (threadIdx.x == 0) mbarrier_init(&bar, 1);
    __syncthreads();
    if (threadIdx.x == 0) {
      const uint64_t start = now_ns();
      const bool done = once<wait>(&bar, hint);
      samples[i] = {done, (unsigned)(now_ns_after(done) - start)};
    } else if (threadIdx.x == 32 && arrive_after >= 0) {
      delay_ns(arrive_after);
      arrive(&bar);
    }
    __syncthreads();
    if (threadIdx.x == 0) mbarrier_inval(&bar);
    __syncthreads();
  }
}

// Warp 0 waits in a loop until the phase ends or a million calls failed; samples: calls, time.
template <Wait wait>
__global__ void loop(unsigned hint, long long arrive_after, Sample* samples) {
  __shared__ uint64_t bar;
  for (int i = 0; i < kTries; ++i) {
    if (threadIdx.x == 0) mbarrier_init(&bar, 1);
    __syncthreads();
    if (threadIdx.x == 0) {
      const uint64_t start = now_ns();
      unsigned calls = 1;
      while (!once<wait>(&bar, hint) && calls < 1'000'000) ++calls;
      samples[i] = {calls, (unsigned)(now_ns() - start)};
    } else if (threadIdx.x == 32) {
      delay_ns(arrive_after);
      arrive(&bar);
    }
    __syncthreads();
    if (threadIdx.x == 0) mbarrier_inval(&bar);
    __syncthreads();
  }
}

template <Wait wait>
void run_loop(const std::string& name, unsigned hint, long long arrive_after) {
  auto* samples = device_alloc<Sample>(kTries);
  loop<wait><<<1, 64>>>(hint, arrive_after, samples);
  const std::string end = end_of_kernel();
  Line line("f", name + " in a loop, phase ends after " + std::to_string(arrive_after) + " ns");
  if (end == "ok") {
    auto got = to_host(samples, kTries);
    line.add("n_tries", kTries);
    auto by_calls = [](Sample a, Sample b) { return a.done < b.done; };
    auto by_time = [](Sample a, Sample b) { return a.ns < b.ns; };
    std::sort(got.begin(), got.end(), by_time);
    line.add("min_ns", got.front().ns).add("max_ns", got.back().ns);
    std::sort(got.begin(), got.end(), by_calls);
    line.add("min_calls", got.front().done).add("max_calls", got.back().done);
  }
  line.add("end", end).print();
}

template <Wait wait>
void run(const std::string& name, unsigned hint, long long arrive_after) {
  auto* samples = device_alloc<Sample>(kTries);
  measure<wait><<<1, 64>>>(hint, arrive_after, samples);
  const std::string end = end_of_kernel();
  const std::string until = ", phase ends after " + std::to_string(arrive_after) + " ns";
  Line line("f", name + (arrive_after < 0 ? ", phase stays open" : until));
  if (end == "ok") {
    auto got = to_host(samples, kTries);
    long long done = 0;
    for (const Sample& s : got) done += s.done;
    std::sort(got.begin(), got.end(), [](Sample a, Sample b) { return a.ns < b.ns; });
    line.add("n_tries", kTries).add("n_returned_true", done);
    line.add("min_ns", got.front().ns).add("max_ns", got.back().ns);
    line.add("min_median_ns", got[kTries / 2].ns).add("max_median_ns", got[kTries / 2].ns);
  }
  line.add("end", end).print();
}

int main() {
  run<kTest>("test_wait", 0, -1);
  run<kTry>("try_wait", 0, -1);
  for (unsigned hint : {0u, 1'000u, 10'000u, 100'000u, 1'000'000u, 10'000'000u})
    run<kTryHint>("try_wait, hint " + std::to_string(hint) + " ns", hint, -1);
  run<kTry>("try_wait", 0, 5'000);
  run<kTry>("try_wait", 0, 200'000);
  run<kTryHint>("try_wait, hint 10000000 ns", 10'000'000, 5'000);
  for (long long after : {5'000, 200'000, 5'000'000}) {
    run_loop<kTest>("test_wait", 0, after);
    run_loop<kTry>("try_wait", 0, after);
    run_loop<kTryHint>("try_wait, hint 10000000 ns", 10'000'000, after);
  }
}
