// Memory: allocations, registered host memory, mappings of physical memory, and handles for other processes.
#include "sim.h"

#include <cerrno>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

// Where the process has ASan, the part of an allocation's last page that nobody asked for is poisoned.
extern "C" __attribute__((weak)) void __asan_poison_memory_region(const volatile void *, size_t);
extern "C" __attribute__((weak)) void __asan_unpoison_memory_region(const volatile void *, size_t);

namespace sim {

namespace {

constexpr size_t granule = 2 << 20;

auto &ranges = *new std::map<uintptr_t, Range>;
auto &reserved = *new std::map<uintptr_t, size_t>;
auto &memories = *new std::map<uint64_t, Memory *>; // by id
auto &handles = *new std::map<CUmemGenericAllocationHandle, Memory *>;
CUmemGenericAllocationHandle nextHandle = 0x1000;

size_t roundUp(size_t n) { return (n + granule - 1) / granule * granule; }

// letGo takes one hold of m away; tables held.
void letGo(Memory *m) {
  if (--m->holds) return;
  drop(m->id);
  close(m->fd);
  memories.erase(m->id);
  delete m;
}

// create makes memory on d's card; the name tells other processes which card that is. tables held.
CUresult create(Device *d, size_t bytes, Memory **out) {
  size_t rounded = roundUp(bytes);
  if (box->device[d->card].noMemory || rounded < bytes) return outOfMemory;
  char name[32];
  snprintf(name, sizeof name, "cusim:%d", d->card);
  int fd = memfd_create(name, MFD_CLOEXEC);
  struct stat st;
  if (fd < 0 || ftruncate(fd, rounded) || fstat(fd, &st)) {
    fprintf(stderr, "cusim: memfd of %zu bytes: %s\n", rounded, strerror(errno));
    if (fd >= 0) close(fd);
    return operatingSystem;
  }
  if (!claim(d->card, st.st_ino, rounded, machine.memory)) {
    close(fd);
    return outOfMemory;
  }
  Memory *m = new Memory{fd, d->card, st.st_ino, bytes, rounded, 1};
  memories[m->id] = m;
  *out = m;
  return success;
}

// adopt is memory that a descriptor leads to; it takes over fd. tables held.
CUresult adopt(int fd, Memory **out) {
  char path[64], name[128];
  snprintf(path, sizeof path, "/proc/self/fd/%d", fd);
  ssize_t n = readlink(path, name, sizeof name - 1);
  struct stat st;
  int card;
  if (n < 0 || (name[n] = 0, sscanf(name, "/memfd:cusim:%d", &card) != 1) || fstat(fd, &st) || card < 0 || card >= maxDevices) {
    close(fd);
    return invalid;
  }
  auto i = memories.find(st.st_ino);
  if (i != memories.end()) {
    close(fd);
    i->second->holds++;
    *out = i->second;
    return success;
  }
  Memory *m = new Memory{fd, card, st.st_ino, (size_t)st.st_size, (size_t)st.st_size, 1};
  hold(card, m->id, m->rounded);
  memories[m->id] = m;
  *out = m;
  return success;
}

CUresult place(Memory *m, void **p) {
  // Aligned as a card aligns, so that nobody relies on less.
  char *at = (char *)mmap(nullptr, m->rounded + granule, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (at == MAP_FAILED) return outOfMemory;
  char *base = (char *)roundUp((uintptr_t)at);
  if (base > at) munmap(at, base - at);
  munmap(base + m->rounded, at + granule - base);
  *p = mmap(base, m->rounded, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_FIXED, m->fd, 0);
  return *p == MAP_FAILED ? outOfMemory : success;
}

// scribble makes fresh memory unlike zeros, so that who reads it unwritten finds out. Large memory stays sparse.
void scribble(void *p, size_t n) {
  if (n <= 4 << 20) memset(p, 0xff, n);
}

void forget(std::map<uintptr_t, Range>::iterator i) {
  Range r = i->second;
  if (__asan_unpoison_memory_region && r.memory) __asan_unpoison_memory_region((void *)r.base, r.memory->rounded);
  munmap((void *)r.base, r.memory->rounded);
  ranges.erase(i);
  letGo(r.memory);
}

bool overlaps(uintptr_t p, size_t n) {
  auto i = ranges.lower_bound(p + n);
  if (i == ranges.begin()) return false;
  --i;
  return i->second.base + i->second.bytes > p;
}

bool aligned(uintptr_t n) { return n % granule == 0; }

bool inReserved(uintptr_t p, size_t n) {
  auto i = reserved.upper_bound(p);
  if (i == reserved.begin()) return false;
  --i;
  return p + n <= i->first + i->second;
}

Memory *ofHandle(CUmemGenericAllocationHandle h) {
  auto i = handles.find(h);
  return i == handles.end() ? nullptr : i->second;
}

// What cuIpcGetMemHandle puts into its 64 bytes.
struct Name {
  char kind;
  int pid, fd, card;
  uint64_t id, bytes;
};
static_assert(sizeof(Name) <= 64, "an IPC handle has 64 bytes");

} // namespace

Range *find(uintptr_t p) {
  auto i = ranges.upper_bound(p);
  if (i == ranges.begin()) return nullptr;
  Range *r = &(--i)->second;
  return p < r->base + r->bytes ? r : nullptr;
}

bool reach(Device *d, uintptr_t p, size_t n, Touch how) {
  Lock l(tables);
  Range *r = find(p);
  if (!r || n > r->base + r->bytes - p) return false;
  uint32_t bit = 1u << d->card;
  switch (r->kind) {
  case Range::allocated: return r->memory->card == d->card || d->peers & 1u << r->memory->card;
  case Range::mapped: return (how == writes ? r->writers : r->readers) & bit;
  default: return true;
  }
}

bool elsewhere(Device *d, uintptr_t p) {
  Lock l(tables);
  Range *r = find(p);
  uint32_t bit = 1u << d->card;
  if (!r || !r->memory) return false;
  return r->kind == Range::mapped ? !((r->readers | r->writers) & bit)
                                  : r->kind == Range::allocated && r->memory->card != d->card && !(d->peers & 1u << r->memory->card);
}

void addVariable(uintptr_t p, size_t n) {
  Range r{Range::variable, p, n};
  ranges.emplace(p, r);
}

void freeAll(Device *d) {
  for (auto i = ranges.begin(); i != ranges.end();) {
    auto next = std::next(i);
    Range &r = i->second;
    if (r.owner == d && (r.kind == Range::allocated || r.kind == Range::opened)) forget(i);
    i = next;
  }
}

} // namespace sim

using namespace sim;

API cuMemGetInfo_v2(size_t *free, size_t *total) {
  ENTER(d)
  *total = machine.memory;
  *free = machine.memory - std::min<size_t>(used(d->card), machine.memory);
  return success;
}

API cuMemAlloc_v2(CUdeviceptr *p, size_t bytes) {
  ENTER(d)
  if (!bytes) return invalid;
  Lock l(tables);
  Memory *m;
  if (CUresult r = create(d, bytes, &m)) return r;
  void *at;
  if (CUresult r = place(m, &at)) {
    letGo(m);
    return r;
  }
  scribble(at, bytes);
  if (__asan_poison_memory_region) __asan_poison_memory_region((char *)at + bytes, m->rounded - bytes);
  Range r{Range::allocated, (uintptr_t)at, bytes};
  r.memory = m;
  r.owner = d;
  ranges[r.base] = r;
  *p = r.base;
  return success;
}

API cuMemFree_v2(CUdeviceptr p) {
  ENTER(d)
  {
    Lock l(tables);
    auto i = ranges.find(p);
    if (i == ranges.end() || i->second.kind != Range::allocated) return invalid;
  }
  if (CUresult r = drainAll(d)) return r;
  Lock l(tables);
  auto i = ranges.find(p);
  if (i == ranges.end() || i->second.kind != Range::allocated) return invalid;
  forget(i);
  return success;
}

API cuMemGetAddressRange_v2(CUdeviceptr *base, size_t *bytes, CUdeviceptr p) {
  ENTER(d)
  (void)d;
  Lock l(tables);
  Range *r = find(p);
  if (!r || r->kind == Range::host) return notFound;
  if (base) *base = r->base;
  if (bytes) *bytes = r->bytes;
  return success;
}

API cuMemHostRegister_v2(void *host, size_t bytes, unsigned flags) {
  ENTER(d)
  if (!host || !bytes || flags & ~15u) return invalid;
  Lock l(tables);
  uintptr_t p = (uintptr_t)host;
  if (overlaps(p, bytes)) return hostRegistered;
  unsigned char there;
  size_t page = getpagesize();
  for (uintptr_t a = p / page * page; a < p + bytes; a += page)
    if (mincore((void *)a, 1, &there)) return invalid; // not mapped
  Range r{Range::host, p, bytes};
  r.owner = d;
  ranges[p] = r;
  return success;
}

API cuMemHostUnregister(void *host) {
  ENTER(d)
  {
    Lock l(tables);
    auto i = ranges.find((uintptr_t)host);
    if (i == ranges.end() || i->second.kind != Range::host) return hostNotRegistered;
  }
  if (CUresult r = drainAll(d)) return r;
  Lock l(tables);
  ranges.erase((uintptr_t)host);
  return success;
}

API cuMemHostGetDevicePointer_v2(CUdeviceptr *p, void *host, unsigned flags) {
  ENTER(d)
  (void)d;
  Lock l(tables);
  Range *r = find((uintptr_t)host);
  if (flags || !r || r->kind != Range::host) return invalid;
  *p = (uintptr_t)host;
  return success;
}

API cuMemGetAllocationGranularity(size_t *bytes, const CUmemAllocationProp *prop, CUmemAllocationGranularity_flags) {
  if (prop->type != CU_MEM_ALLOCATION_TYPE_PINNED || prop->location.type != CU_MEM_LOCATION_TYPE_DEVICE) return invalid;
  *bytes = granule;
  return success;
}

API cuMemCreate(CUmemGenericAllocationHandle *h, size_t bytes, const CUmemAllocationProp *prop, unsigned long long flags) {
  ENTER(d)
  (void)d;
  if (flags || !bytes || !aligned(bytes) || prop->type != CU_MEM_ALLOCATION_TYPE_PINNED || prop->location.type != CU_MEM_LOCATION_TYPE_DEVICE ||
      prop->location.id < 0 || prop->location.id >= (int)devices.size())
    return invalid;
  Lock l(tables);
  Memory *m;
  if (CUresult r = create(devices[prop->location.id], bytes, &m)) return r;
  *h = nextHandle++;
  handles[*h] = m;
  return success;
}

API cuMemRelease(CUmemGenericAllocationHandle h) {
  ENTER(d)
  (void)d;
  Lock l(tables);
  Memory *m = ofHandle(h);
  if (!m) return invalid;
  handles.erase(h);
  letGo(m);
  return success;
}

API cuMemExportToShareableHandle(void *shareable, CUmemGenericAllocationHandle h, CUmemAllocationHandleType type, unsigned long long flags) {
  ENTER(d)
  (void)d;
  Lock l(tables);
  Memory *m = ofHandle(h);
  if (!m || flags || type != CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR) return invalid;
  int fd = fcntl(m->fd, F_DUPFD_CLOEXEC, 0);
  if (fd < 0) return operatingSystem;
  *(int *)shareable = fd;
  return success;
}

API cuMemImportFromShareableHandle(CUmemGenericAllocationHandle *h, void *shareable, CUmemAllocationHandleType type) {
  ENTER(d)
  (void)d;
  if (type != CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR) return invalid;
  int fd = fcntl((int)(intptr_t)shareable, F_DUPFD_CLOEXEC, 0);
  if (fd < 0) return invalid;
  Lock l(tables);
  Memory *m;
  if (CUresult r = adopt(fd, &m)) return r;
  if (!deviceOfCard(m->card)) { // not among this process's devices
    letGo(m);
    return invalidDevice;
  }
  *h = nextHandle++;
  handles[*h] = m;
  return success;
}

API cuMemAddressReserve(CUdeviceptr *p, size_t bytes, size_t alignment, CUdeviceptr, unsigned long long flags) {
  ENTER(d)
  (void)d;
  if (flags || !bytes || !aligned(bytes) || alignment & (alignment - 1)) return invalid;
  size_t align = std::max(alignment, granule);
  char *at = (char *)mmap(nullptr, bytes + align, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (at == MAP_FAILED) return outOfMemory;
  char *base = (char *)(((uintptr_t)at + align - 1) / align * align);
  if (base > at) munmap(at, base - at);
  munmap(base + bytes, at + align - base);
  Lock l(tables);
  reserved[(uintptr_t)base] = bytes;
  *p = (uintptr_t)base;
  return success;
}

API cuMemAddressFree(CUdeviceptr p, size_t bytes) {
  ENTER(d)
  (void)d;
  Lock l(tables);
  auto i = reserved.find(p);
  if (i == reserved.end() || i->second != bytes || overlaps(p, bytes)) return invalid;
  munmap((void *)p, bytes);
  reserved.erase(i);
  return success;
}

API cuMemMap(CUdeviceptr p, size_t bytes, size_t offset, CUmemGenericAllocationHandle h, unsigned long long flags) {
  ENTER(d)
  Lock l(tables);
  Memory *m = ofHandle(h);
  if (!m || flags || offset || !bytes || !aligned(p) || !aligned(bytes) || bytes > m->rounded || !inReserved(p, bytes) || overlaps(p, bytes)) return invalid;
  if (mmap((void *)p, bytes, PROT_NONE, MAP_SHARED | MAP_FIXED, m->fd, 0) == MAP_FAILED) return operatingSystem;
  Range r{Range::mapped, p, bytes};
  r.memory = m;
  r.owner = d;
  m->holds++;
  ranges[p] = r;
  return success;
}

API cuMemUnmap(CUdeviceptr p, size_t bytes) {
  ENTER(d)
  if (CUresult r = drainAll(d)) return r;
  Lock l(tables);
  // Whole mappings, side by side.
  uintptr_t at = p;
  while (at < p + bytes) {
    auto i = ranges.find(at);
    if (i == ranges.end() || i->second.kind != Range::mapped || i->second.bytes > p + bytes - at) return invalid;
    at += i->second.bytes;
  }
  for (at = p; at < p + bytes;) {
    auto i = ranges.find(at);
    Range r = i->second;
    mmap((void *)at, r.bytes, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE | MAP_FIXED, -1, 0);
    ranges.erase(i);
    letGo(r.memory);
    at += r.bytes;
  }
  return success;
}

API cuMemSetAccess(CUdeviceptr p, size_t bytes, const CUmemAccessDesc *desc, size_t count) {
  ENTER(d)
  (void)d;
  Lock l(tables);
  for (size_t k = 0; k < count; k++) {
    int id = desc[k].location.id;
    unsigned flags = desc[k].flags;
    if (desc[k].location.type != CU_MEM_LOCATION_TYPE_DEVICE || id < 0 || id >= (int)devices.size()) return invalidDevice;
    if (flags != CU_MEM_ACCESS_FLAGS_PROT_NONE && flags != CU_MEM_ACCESS_FLAGS_PROT_READ && flags != CU_MEM_ACCESS_FLAGS_PROT_READWRITE) return invalid;
    int card = devices[id]->card;
    for (uintptr_t at = p; at < p + bytes;) {
      auto i = ranges.find(at);
      if (i == ranges.end() || i->second.kind != Range::mapped || i->second.bytes > p + bytes - at) return invalid;
      Range &r = i->second;
      if (card != r.memory->card && (box->device[card].noPeer || box->device[r.memory->card].noPeer)) return invalidDevice;
      uint32_t bit = 1u << card;
      r.readers = flags ? r.readers | bit : r.readers & ~bit;
      r.writers = flags == CU_MEM_ACCESS_FLAGS_PROT_READWRITE ? r.writers | bit : r.writers & ~bit;
      // The process sees what any of its devices may.
      mprotect((void *)r.base, r.bytes, (r.readers ? PROT_READ : 0) | (r.writers ? PROT_WRITE : 0));
      at += r.bytes;
    }
  }
  return success;
}

API cuIpcGetMemHandle(CUipcMemHandle *h, CUdeviceptr p) {
  ENTER(d)
  (void)d;
  Lock l(tables);
  Range *r = find(p);
  if (!r || r->kind != Range::allocated) return invalid;
  Name n{'M', getpid(), r->memory->fd, r->memory->card, r->memory->id, r->bytes};
  memset(h, 0, sizeof *h);
  memcpy(h, &n, sizeof n);
  return success;
}

API cuIpcOpenMemHandle_v2(CUdeviceptr *p, CUipcMemHandle h, unsigned flags) {
  ENTER(d)
  Name n;
  memcpy(&n, &h, sizeof n);
  if (flags != CU_IPC_MEM_LAZY_ENABLE_PEER_ACCESS || n.kind != 'M') return invalid;
  if (n.pid == getpid()) return invalidContext;
  if (n.card != d->card && (n.card < 0 || n.card >= maxDevices || box->device[n.card].noPeer || box->device[d->card].noPeer)) return peerUnsupported;
  Lock l(tables);
  for (auto &i : ranges)
    if (i.second.kind == Range::opened && i.second.memory->id == n.id) {
      if (i.second.owner != d) return illegalState; // one context of a process may have it open
      i.second.opens++;
      *p = i.second.base;
      return success;
    }
  char path[64];
  snprintf(path, sizeof path, "/proc/%d/fd/%d", n.pid, n.fd);
  int fd = open(path, O_RDWR | O_CLOEXEC);
  struct stat st;
  if (fd < 0) return invalid;
  if (fstat(fd, &st) || st.st_ino != n.id) { // freed, and the number used again
    close(fd);
    return invalid;
  }
  Memory *m;
  if (CUresult r = adopt(fd, &m)) return r;
  m->bytes = n.bytes;
  void *at;
  if (CUresult r = place(m, &at)) {
    letGo(m);
    return r;
  }
  Range r{Range::opened, (uintptr_t)at, m->bytes};
  r.memory = m;
  r.owner = d;
  r.opens = 1;
  ranges[r.base] = r;
  *p = r.base;
  return success;
}

API cuIpcCloseMemHandle(CUdeviceptr p) {
  ENTER(d)
  if (CUresult r = drainAll(d)) return r;
  Lock l(tables);
  auto i = ranges.find(p);
  if (i == ranges.end() || i->second.kind != Range::opened) return invalid;
  if (--i->second.opens == 0) forget(i);
  return success;
}
