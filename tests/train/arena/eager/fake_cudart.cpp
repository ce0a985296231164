// Stands in for CUDA's runtime library: the device's entry points, over the host's memory.
#include <sys/mman.h>

#include <cstddef>

static long long limit = -1, held = 0;
static int device = 0, waits = 0;

extern "C" {
void fake_limit(long long nbytes) { limit = nbytes; }
long long fake_held() { return held; }
int fake_waits() { return waits; }
// Sizes are kept in front; pages that nobody writes take no memory. None is reserved: what is left at the end would
// count as if it were used, and the test process could fork no more.
int cudaMalloc(void** found, size_t nbytes) {
  if (limit >= 0 && held + static_cast<long long>(nbytes) > limit) return 2;
  void* mapped = mmap(nullptr, nbytes + 512, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (mapped == MAP_FAILED) return 2;
  char* block = static_cast<char*>(mapped);
  *reinterpret_cast<size_t*>(block) = nbytes;
  held += static_cast<long long>(nbytes);
  *found = block + 512;
  return 0;
}
int cudaFree(void* pointer) {
  char* block = static_cast<char*>(pointer) - 512;
  const size_t nbytes = *reinterpret_cast<size_t*>(block);
  held -= static_cast<long long>(nbytes);
  munmap(block, nbytes + 512);
  return 0;
}
int cudaDeviceSynchronize() { ++waits; return 0; }
int cudaGetDevice(int* found) { *found = device; return 0; }
int cudaSetDevice(int wanted) { device = wanted; return 0; }
int cudaGetLastError() { return 0; }
}
