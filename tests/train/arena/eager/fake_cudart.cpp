// Stands in for CUDA's runtime library: the device's entry points, over the host's memory.
#include <cstddef>
#include <cstdlib>

static long long limit = -1, held = 0;
static int device = 0, waits = 0;

extern "C" {
void fake_limit(long long nbytes) { limit = nbytes; }
long long fake_held() { return held; }
int fake_waits() { return waits; }
// Sizes are kept in front; pages that nobody writes take no memory.
int cudaMalloc(void** found, size_t nbytes) {
  if (limit >= 0 && held + static_cast<long long>(nbytes) > limit) return 2;
  char* block = static_cast<char*>(std::malloc(nbytes + 512));
  *reinterpret_cast<size_t*>(block) = nbytes;
  held += static_cast<long long>(nbytes);
  *found = block + 512;
  return 0;
}
int cudaFree(void* pointer) {
  char* block = static_cast<char*>(pointer) - 512;
  held -= static_cast<long long>(*reinterpret_cast<size_t*>(block));
  std::free(block);
  return 0;
}
int cudaDeviceSynchronize() { ++waits; return 0; }
int cudaGetDevice(int* found) { *found = device; return 0; }
int cudaSetDevice(int wanted) { device = wanted; return 0; }
int cudaGetLastError() { return 0; }
}
