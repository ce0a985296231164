// The allocator that torch calls for CUDA memory: the policy of policy.py, request by request, and ordinary blocks.
//
// CUDA's library is opened while running, so a plain compiler is enough. A block may be used again as soon as it is freed,
// since work of one stream runs in order; blocks that another stream used are waited for.

#include <dlfcn.h>
#include <stddef.h>
#include <sys/types.h>

#include <iterator>
#include <map>
#include <mutex>
#include <stdexcept>
#include <string>
#include <tuple>
#include <unordered_map>
#include <vector>

namespace {

constexpr long long kAligned = 512;
constexpr size_t kLookAhead = 8;
constexpr size_t kMostEvents = 4'000'000;  // a program without steps is not recorded for ever

using Stream = void*;

struct Runtime {
  int (*allocate)(void**, size_t) = nullptr;
  int (*release)(void*) = nullptr;
  int (*wait)() = nullptr;
  int (*get_device)(int*) = nullptr;
  int (*set_device)(int) = nullptr;
  int (*last_error)() = nullptr;
};

struct Planned {
  long long nbytes;
  long long offset;  // -1: an ordinary block
};

struct Block {
  long long nbytes;
  int device;
  Stream stream;
  long long offset;  // in the arena; -1: ordinary
  long long number;
  bool is_shared = false;  // used by another stream
};

struct Event {
  int kind;  // 0 request, 1 end of a block, 2 end of a step
  long long number;
  long long nbytes;
};

struct Counts {
  long long planned, outliving, unexpected, occupied, left_out, reserved, most_reserved, waits;
};

using Key = std::tuple<int, Stream, long long>;

// Never destroyed: torch frees memory while the process ends, after a library's own objects would be gone.
std::mutex& guard = *new std::mutex;
Runtime runtime;
auto& alive = *new std::unordered_map<void*, Block>;
auto& kept = *new std::map<Key, std::vector<void*>>;
auto& events = *new std::vector<Event>;
auto& plan = *new std::vector<Planned>;
auto& places = *new std::map<long long, long long>;  // start and end of what is alive in the arena
size_t position = 0;
char* arena = nullptr;
long long arena_bytes = 0;
int arena_device = -1;
Stream arena_stream = nullptr;
bool records = true;
bool has_stream = false;
long long next_number = 1;
Counts counts = {};

long long rounded(long long nbytes) {
  long long units = (nbytes + kAligned - 1) / kAligned;
  return (units < 1 ? 1 : units) * kAligned;
}

void record(const Event& event) {
  events.push_back(event);
  if (events.size() < kMostEvents) return;
  records = false;
  events.clear();
  events.shrink_to_fit();
}

// Position in the plan of a request, or -1.
long long expected(long long size) {
  for (size_t number = position; number < plan.size() && number < position + kLookAhead; ++number) {
    if (plan[number].nbytes == size) {
      counts.left_out += static_cast<long long>(number - position);
      position = number + 1;
      return static_cast<long long>(number);
    }
  }
  return -1;
}

bool is_free(long long offset, long long size) {
  auto behind = places.lower_bound(offset);
  if (behind != places.end() && behind->first < offset + size) return false;
  return behind == places.begin() || std::prev(behind)->second <= offset;
}

// Offset of a request's place in the arena, or -1.
long long placed(long long size) {
  long long number = expected(size);
  if (number < 0) {
    ++counts.unexpected;
    return -1;
  }
  long long offset = plan[static_cast<size_t>(number)].offset;
  if (offset < 0) {
    ++counts.outliving;
    return -1;
  }
  if (!is_free(offset, size)) {
    ++counts.occupied;
    return -1;
  }
  places[offset] = offset + size;
  ++counts.planned;
  return offset;
}

class OnDevice {
 public:
  explicit OnDevice(int device) {
    runtime.get_device(&before_);
    if (before_ != device) runtime.set_device(device);
    changed_ = before_ != device;
  }
  ~OnDevice() {
    if (changed_) runtime.set_device(before_);
  }

 private:
  int before_ = 0;
  bool changed_ = false;
};

void release_kept() {
  for (auto& [key, blocks] : kept) {
    if (blocks.empty()) continue;
    OnDevice on(std::get<0>(key));
    runtime.wait();
    for (void* block : blocks) {
      runtime.release(block);
      counts.reserved -= std::get<2>(key);
    }
  }
  kept.clear();
}

void* fresh(long long size, int device) {
  OnDevice on(device);
  void* found = nullptr;
  if (runtime.allocate(&found, static_cast<size_t>(size)) != 0) {
    runtime.last_error();  // forgets it
    release_kept();
    if (runtime.allocate(&found, static_cast<size_t>(size)) != 0) {
      runtime.last_error();
      throw std::runtime_error("CUDA out of memory in stoker's planned allocator: " + std::to_string(size) +
                               " bytes asked for, " + std::to_string(counts.reserved) + " held by it");
    }
  }
  counts.reserved += size;
  if (counts.reserved > counts.most_reserved) counts.most_reserved = counts.reserved;
  return found;
}

}  // namespace

extern "C" {

// Opens CUDA's library; returns 0, or 1 if something in it is missing.
int stoker_open(const char* path) {
  std::lock_guard<std::mutex> lock(guard);
  void* library = dlopen(path, RTLD_NOW | RTLD_GLOBAL);
  if (library == nullptr) return 1;
  runtime.allocate = reinterpret_cast<int (*)(void**, size_t)>(dlsym(library, "cudaMalloc"));
  runtime.release = reinterpret_cast<int (*)(void*)>(dlsym(library, "cudaFree"));
  runtime.wait = reinterpret_cast<int (*)()>(dlsym(library, "cudaDeviceSynchronize"));
  runtime.get_device = reinterpret_cast<int (*)(int*)>(dlsym(library, "cudaGetDevice"));
  runtime.set_device = reinterpret_cast<int (*)(int)>(dlsym(library, "cudaSetDevice"));
  runtime.last_error = reinterpret_cast<int (*)()>(dlsym(library, "cudaGetLastError"));
  bool whole = runtime.allocate && runtime.release && runtime.wait && runtime.get_device && runtime.set_device &&
               runtime.last_error;
  return whole ? 0 : 1;
}

void* stoker_allocate(ssize_t nbytes, int device, Stream stream) {
  if (nbytes <= 0) return nullptr;
  std::lock_guard<std::mutex> lock(guard);
  long long size = rounded(nbytes);
  if (records && !has_stream) {
    has_stream = true;
    arena_device = device;
    arena_stream = stream;
  }
  bool is_ours = device == arena_device && stream == arena_stream;
  Block block{size, device, stream, -1, next_number++};
  void* found = nullptr;
  if (arena != nullptr && is_ours) block.offset = placed(size);
  if (block.offset >= 0) {
    found = arena + block.offset;
  } else {
    auto& blocks = kept[Key(device, stream, size)];
    if (!blocks.empty()) {
      found = blocks.back();
      blocks.pop_back();
    } else {
      found = fresh(size, device);
    }
  }
  if (records && is_ours) record({0, block.number, static_cast<long long>(nbytes)});
  alive[found] = block;
  return found;
}

void stoker_free(void* pointer, ssize_t, int, Stream) {
  if (pointer == nullptr) return;
  std::lock_guard<std::mutex> lock(guard);
  auto found = alive.find(pointer);
  if (found == alive.end()) return;
  Block block = found->second;
  alive.erase(found);
  if (block.is_shared) {
    OnDevice on(block.device);
    runtime.wait();
    ++counts.waits;
  }
  if (records && block.device == arena_device && block.stream == arena_stream) record({1, block.number, 0});
  if (block.offset >= 0) {
    places.erase(block.offset);
  } else {
    kept[Key(block.device, block.stream, block.nbytes)].push_back(pointer);
  }
}

// A block is used by another stream than the one it was made for.
void stoker_record_stream(void* pointer, Stream stream) {
  std::lock_guard<std::mutex> lock(guard);
  auto found = alive.find(pointer);
  if (found != alive.end() && found->second.stream != stream) found->second.is_shared = true;
}

// Gives back what is kept for later requests.
void stoker_release(void) {
  std::lock_guard<std::mutex> lock(guard);
  release_kept();
}

void stoker_step(void) {
  std::lock_guard<std::mutex> lock(guard);
  if (records) record({2, 0, 0});
  if (arena != nullptr) {
    if (position < plan.size()) counts.left_out += static_cast<long long>(plan.size() - position);
    position = 0;
  }
}

// Copies at most `room` events, three numbers each; returns how many there are.
long long stoker_events(long long* into, long long room) {
  std::lock_guard<std::mutex> lock(guard);
  for (size_t number = 0; number < events.size() && static_cast<long long>(number) < room; ++number) {
    into[3 * number] = events[number].kind;
    into[3 * number + 1] = events[number].number;
    into[3 * number + 2] = events[number].nbytes;
  }
  return static_cast<long long>(events.size());
}

// Ends the recording and allocates an arena for a plan; returns 0, or 1 if there is no memory for it: then all requests get
// ordinary blocks.
int stoker_plan(const long long* nbytes, const long long* offsets, long long count, long long total) {
  std::lock_guard<std::mutex> lock(guard);
  records = false;
  events.clear();
  events.shrink_to_fit();
  release_kept();
  if (count <= 0 || total <= 0 || arena != nullptr) return 1;
  try {
    arena = static_cast<char*>(fresh(total, arena_device));
  } catch (const std::runtime_error&) {
    return 1;
  }
  arena_bytes = total;
  for (long long number = 0; number < count; ++number) plan.push_back({nbytes[number], offsets[number]});
  position = 0;
  return 0;
}

// Offset in the arena of something alive; -1: an ordinary block.
long long stoker_place(void* pointer) {
  std::lock_guard<std::mutex> lock(guard);
  auto found = alive.find(pointer);
  return found == alive.end() ? -1 : found->second.offset;
}

void stoker_counts(long long* into) {
  std::lock_guard<std::mutex> lock(guard);
  const long long all[] = {counts.planned,  counts.outliving,     counts.unexpected, counts.occupied, counts.left_out,
                           counts.reserved, counts.most_reserved, counts.waits,      arena_bytes};
  for (size_t number = 0; number < std::size(all); ++number) into[number] = all[number];
}

}  // extern "C"
