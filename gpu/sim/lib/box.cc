#include "box.h"

#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <fcntl.h>
#include <mutex>
#include <sys/file.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

namespace sim {

Box *box;

namespace {

int file = -1, self = -1;
std::mutex &mutex = *new std::mutex; // the file's lock does not tell threads apart

// Locked holds both locks.
struct Locked {
  std::lock_guard<std::mutex> guard{mutex};
  Locked() {
    while (flock(file, LOCK_EX)) {}
  }
  ~Locked() { flock(file, LOCK_UN); }
};

// started is when a process started, in the kernel's ticks; zero if it is gone or holds no memory any more.
uint64_t started(uint64_t pid) {
  char path[64], text[1024];
  snprintf(path, sizeof path, "/proc/%llu/stat", (unsigned long long)pid);
  int fd = open(path, O_RDONLY | O_CLOEXEC);
  if (fd < 0) return 0;
  ssize_t n = read(fd, text, sizeof text - 1);
  close(fd);
  if (n <= 0) return 0;
  text[n] = 0;
  char *p = strrchr(text, ')'); // the name before it may hold anything
  if (!p || p[2] == 'Z' || p[2] == 'X') return 0;
  for (int field = 2; field < 22 && p; field++) p = strchr(p + 1, ' ');
  return p ? strtoull(p, nullptr, 10) : 0;
}

void release(BoxMemory &m, int process) {
  m.holders[process / 64] &= ~(1ull << process % 64);
  for (uint64_t h : m.holders)
    if (h) return;
  m.used = 0;
}

void reap() {
  for (int i = 0; i < maxProcesses; i++) {
    BoxProcess &p = box->process[i];
    if (!p.pid || i == self || started(p.pid) == p.started) continue;
    for (BoxMemory &m : box->memory)
      if (m.used) release(m, i);
    p = {};
  }
}

uint64_t usedLocked(int device) {
  uint64_t n = 0;
  for (BoxMemory &m : box->memory)
    if (m.used && m.device == (uint32_t)device) n += m.bytes;
  return n;
}

void holdLocked(int device, uint64_t id, uint64_t bytes) {
  BoxMemory *free = nullptr;
  for (BoxMemory &m : box->memory) {
    if (m.used && m.id == id) {
      m.holders[self / 64] |= 1ull << self % 64;
      return;
    }
    if (!m.used && !free) free = &m;
  }
  if (!free) {
    fprintf(stderr, "cusim: more than %d allocations\n", maxMemories);
    abort();
  }
  *free = {};
  free->device = device;
  free->used = 1;
  free->bytes = bytes;
  free->id = id;
  free->holders[self / 64] |= 1ull << self % 64;
}

} // namespace

void openBox() {
  const char *path = getenv("CUSIM_CONTROL");
  file = path && *path ? open(path, O_RDWR | O_CLOEXEC) : memfd_create("cusim-box", MFD_CLOEXEC);
  struct stat st;
  if (file < 0 || fstat(file, &st) || (st.st_size < (off_t)sizeof(Box) && ftruncate(file, sizeof(Box)))) {
    perror("cusim: CUSIM_CONTROL");
    abort();
  }
  box = (Box *)mmap(nullptr, sizeof(Box), PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
  if (box == MAP_FAILED) {
    perror("cusim: CUSIM_CONTROL");
    abort();
  }
  Locked l;
  reap();
  for (int i = 0; i < maxProcesses; i++) {
    if (box->process[i].pid) continue;
    self = i;
    box->process[i] = {(uint64_t)getpid(), started(getpid())};
    return;
  }
  fprintf(stderr, "cusim: more than %d processes\n", maxProcesses);
  abort();
}

bool claim(int device, uint64_t id, uint64_t bytes, uint64_t total) {
  Locked l;
  if (usedLocked(device) + bytes > total) {
    reap();
    if (usedLocked(device) + bytes > total) return false;
  }
  holdLocked(device, id, bytes);
  return true;
}

void hold(int device, uint64_t id, uint64_t bytes) {
  Locked l;
  holdLocked(device, id, bytes);
}

void drop(uint64_t id) {
  Locked l;
  for (BoxMemory &m : box->memory)
    if (m.used && m.id == id) release(m, self);
}

uint64_t used(int device) {
  Locked l;
  reap();
  return usedLocked(device);
}

} // namespace sim
