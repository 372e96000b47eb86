// A simulated CUDA driver: what its parts share. Handles that callers hold are addresses of the structs below,
// and are looked up in tables before they are used, so that a stale one is refused and not followed.
//
// Locks: tables, then a stream's, then the box's. Threads and tables are never destroyed: a process may exit
// while streams run.
#ifndef CUSIM_SIM_H
#define CUSIM_SIM_H

#include <algorithm>
#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <set>
#include <string>
#include <vector>

#include "../../driver/nvidia/abi.h"
#include "box.h"
#include "kernel.h"

#define API extern "C" __attribute__((visibility("default"))) CUresult

namespace sim {

enum Result {
  success = 0, invalid = 1, outOfMemory = 2, notInitialized = 3, noDevice = 100, invalidDevice = 101, invalidImage = 200,
  invalidContext = 201, noBinary = 209, peerUnsupported = 217, invalidPTX = 218, ptxTooNew = 222, operatingSystem = 304,
  invalidHandle = 400, illegalState = 401, notFound = 500, notReady = 600, illegalAddress = 700, outOfResources = 701,
  peerEnabled = 704, contextDestroyed = 709, hostRegistered = 712, hostNotRegistered = 713, launchFailed = 719,
  notSupported = 801, captureForbidden = 900, captureInvalid = 901, captureUnmatched = 903, captureUnjoined = 904,
  captureIsolation = 905, captureImplicit = 906, capturedEvent = 907, graphUpdate = 910,
};

struct Stream;

// A device of this process, with its primary context. card is its number in the box.
struct Device {
  int card = 0;
  int retained = 0;
  std::atomic<int> fault{0}; // ended the context
  std::atomic<uint32_t> peers{0}; // cards whose allocations it may reach
  Stream *standard = nullptr;
  std::set<Stream *> streams; // standard too
};

struct Machine {
  int devices = 8, major = 12, minor = 0, version = 13000;
  size_t memory = 96ull << 30;
};
extern Machine machine;
extern std::vector<Device *> &devices; // by ordinal
Device *deviceOfCard(int card);

// What is current on this thread.
extern thread_local Device *current;

// enter is how every call about a context begins: it finds the context, or why there is none any more.
CUresult enter(Device **d);
// health looks for faults that were injected, and returns what ended the context.
int health(Device *d);
// fail ends the context.
void fail(Device *d, int result, const char *why);
#define ENTER(d)  \
  Device *d;      \
  if (CUresult r_ = enter(&d)) return r_;

extern std::mutex &tables;
using Lock = std::lock_guard<std::mutex>;

// Memory: a memfd, with everything in this process that holds it.
struct Memory {
  int fd, card;
  uint64_t id; // the memfd's inode
  size_t bytes, rounded;
  int holds = 0;
};

// Range: addresses that lead somewhere.
struct Range {
  enum Kind { allocated, opened, mapped, host, variable } kind;
  uintptr_t base;
  size_t bytes;
  Memory *memory = nullptr; // none for host and variable
  Device *owner = nullptr;
  uint32_t readers = 0, writers = 0; // of mapped: cards
  int opens = 0;                     // of opened
};
Range *find(uintptr_t p); // tables held

// reach says whether card d may touch n bytes at p. Of addresses that are nobody's it says no.
enum Touch { reads, writes };
bool reach(Device *d, uintptr_t p, size_t n, Touch how);
// elsewhere says whether p is memory of a card that d may not reach at all.
bool elsewhere(Device *d, uintptr_t p);
// addVariable makes a variable of a kernel library known. tables held.
void addVariable(uintptr_t p, size_t n);
// freeAll frees what a context that is given up owns. tables held.
void freeAll(Device *d);

// Op is one thing that a stream does. code tells nodes of a graph apart.
struct Op {
  const void *code;
  std::function<void()> run;
};

struct Stream;
struct Capture {
  Stream *origin;
  std::vector<Op> ops;
  std::map<Stream *, size_t> length, joined; // nodes of each stream; how many of them others wait for
  bool broken = false;
};

struct Stream {
  Device *d;
  std::mutex m;
  std::condition_variable changed;
  std::deque<Op> queue;
  bool busy = false, closed = false;
  std::shared_ptr<Capture> capture;
};

// stream finds a stream of d; null is d's standard one.
Stream *stream(Device *d, CUstream s);
// put queues, or records.
CUresult put(Stream *s, Op op);
// drain waits until s has done all, or its context has ended, and returns the context's fault.
CUresult drain(Stream *s);
CUresult drainAll(Device *d);
// finish waits until s has done or skipped all, even if the context ends meanwhile.
CUresult finish(Stream *s);
// ready refuses to ask or to wait for a stream that records.
CUresult ready(Stream *s);
// pause is a step of waiting in a stream. False: the context has ended.
bool pause(Device *d, int &steps);
// guarded runs f on a stream's thread; touching memory that is not there ends the context.
void guarded(Device *d, const char *what, const std::function<void()> &f);

} // namespace sim
#endif
