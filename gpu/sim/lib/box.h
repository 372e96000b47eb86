// The machine that several simulated processes share: a file that all of them map (CUSIM_CONTROL). It says
// which device is out of order and how, counts what was done, and knows which process holds what memory, so
// that memory is used up, kept and given back across processes as on a card. Without a file each process is
// alone on a machine of its own.
//
// Words up to offset 8192 are plain atomics that tests write and read (box.go has the same offsets). What is
// beyond is guarded by a lock on the file, which the kernel opens when its holder dies.
#ifndef CUSIM_BOX_H
#define CUSIM_BOX_H

#include <atomic>
#include <cstddef>
#include <cstdint>

namespace sim {

constexpr int maxDevices = 16, maxProcesses = 256, maxMemories = 16384;

struct BoxDevice {
  std::atomic<uint32_t> fault;    // a CUresult that ends every context on the device
  std::atomic<uint32_t> faultPid; // ... of this process only, unless zero
  std::atomic<uint32_t> lost;     // a CUresult that every call about the device returns
  std::atomic<uint32_t> noMemory; // allocations find none
  std::atomic<uint32_t> hang;     // streams of the device stand still
  std::atomic<uint32_t> noPeer;   // claims that it can reach no peer
  std::atomic<uint32_t> delay;    // microseconds that every operation of a stream takes longer
  uint32_t spare[9];
};

// What happens to data on its way from one device to another, where no host is in between.
enum : uint32_t { dropWrites = 1, corruptWrites = 2, corruptReads = 4 };

struct BoxProcess { uint64_t pid, started; };

// Physical memory, as long as some process holds it.
struct BoxMemory {
  uint32_t device, used;
  uint64_t bytes, id;
  uint64_t holders[maxProcesses / 64];
  uint64_t spare;
};

struct Box {
  uint32_t spare[16];
  BoxDevice device[maxDevices];
  std::atomic<uint32_t> pair[maxDevices][maxDevices]; // [from][to]
  std::atomic<uint64_t> launches[maxDevices];
  std::atomic<uint64_t> copied[maxDevices][maxDevices]; // bytes, [from][to], directly
  alignas(8192) BoxProcess process[maxProcesses];
  BoxMemory memory[maxMemories];
};
static_assert(sizeof(BoxDevice) == 64 && offsetof(Box, device) == 64 && offsetof(Box, pair) == 1088 && offsetof(Box, launches) == 2112 &&
                  offsetof(Box, copied) == 2240 && offsetof(Box, process) == 8192 && offsetof(Box, memory) == 12288 && sizeof(BoxMemory) == 64,
              "box.go has these numbers");

extern Box *box;

// openBox maps the file, or memory of this process's own, and registers this process. It ends the process if
// the file cannot be used.
void openBox();

// The following take the lock. claim counts memory against its device, or returns false when there is not
// enough of it (total bytes); hold adds this process to the holders of memory that another one made; drop takes
// it away, and the last one's drop frees the memory. used is what living processes hold.
bool claim(int device, uint64_t id, uint64_t bytes, uint64_t total);
void hold(int device, uint64_t id, uint64_t bytes);
void drop(uint64_t id);
uint64_t used(int device);

} // namespace sim
#endif
